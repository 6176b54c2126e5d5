"""Reading the shards of a log that lie in one place, all by one command.

A server that restarts without its data has another identity. Shards are then read again from the
beginning, and so is a stream that lost its newest entries.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from kvatlas_events.log import LogPosition, LogSlice
from kvatlas_events.redis_layout import Command, Home, Place, Reply

RECORD_FIELD = b"r"
PROBE_FIELD = b"p"

_SLICE_BYTES = 8 << 20
"""A slice aims at so many bytes: the server can be asked for a count of records only."""
_SLICE_RECORDS = 64
_SLICE_RECORDS_MIN = 16
_SLICE_RECORDS_MAX = 2_048
_SHARD_RECORDS_MAX = 256
"""At least so many may come of one shard, however many there are."""

EntryId = tuple[int, int]
"""Milliseconds of the server's clock, and a counter within them."""
_BEGINNING: EntryId = (0, 0)

_INSPECT_S = 5.0
"""How long a reader may go by glances: they write nothing, so a replica answers them for ever."""


class ShardsReader:
    """Reads one `Home`; used by one task at a time.

    Args:
        home: what to read.
        identity: of the log that `read_to` belongs to; None: whichever there is.
        read_to: the entry read last of each shard, as `LogPosition` writes it; None: from the
            beginning.

    Raises:
        ValueError: `read_to` is no such thing.
    """

    def __init__(
        self, home: Home, *, identity: str | None = None, read_to: Sequence[str] | None = None
    ) -> None:
        self._home = home
        self._keys = list(home.streams.values())
        self._places = {key.encode(): place for place, key in enumerate(self._keys)}
        self._identity = identity
        self._read_to = (
            [_BEGINNING] * len(self._keys)
            if read_to is None
            else [_entry_id(entry.encode()) for entry in read_to]
        )
        self._heads_at_start: list[EntryId] | None = None
        self._certain = False  # that the log is the same and nothing unread has been trimmed
        self._inspected_s = 0.0
        self._connections = 0
        self._lost = False
        self._asked = max(_SLICE_RECORDS // len(self._keys), 1)

    async def read(self, wait_s: float) -> LogSlice:
        """As of `LogReader`; each shard's records in order, shards that are behind last."""
        asked = self._asked
        now_s = asyncio.get_running_loop().time()
        if now_s - self._inspected_s > _INSPECT_S:
            self._certain = False
        entries = await self._glance() if self._certain else None
        self._certain = False  # and stays so if this read fails
        if entries is None:
            entries = await self._inspect()
        if not any(entries) and wait_s > 0:
            # Served by the first append after the glance: nothing can be trimmed in between.
            streams = await self._home.place.call(
                *("XREAD", "COUNT", asked, "BLOCK", max(1, int(wait_s * 1_000))),
                *("STREAMS", *self._keys, *map(_text, self._read_to)),
                wait_s=wait_s,
            )
            entries = self._by_shard(streams)
        self._certain = all(len(each) < asked for each in entries)
        return self._slice(entries, asked)

    def _read_now(self) -> Command:
        after = map(_text, self._read_to)
        return ("XREAD", "COUNT", self._asked, "STREAMS", *self._keys, *after)

    def _by_shard(self, streams: Reply) -> list[list[Reply]]:
        """Return the (id, fields) of every shard; an XREAD leaves out those with nothing new."""
        entries: list[list[Reply]] = [[] for _ in self._keys]
        for key, new in streams or ():
            entries[self._places[key]] = new
        return entries

    async def _glance(self) -> list[list[Reply]] | None:
        """Read without waiting; None: something may be wrong, look closer.

        Trimming takes the oldest entries first. So if a stream holds more than what is unread,
        an entry that has been read is among it, and nothing unread was trimmed.
        """
        place = self._home.place
        identity, *held, streams = await place.call_together(
            [
                ("GET", self._home.identity_key),
                *(("XLEN", key) for key in self._keys),
                self._read_now(),
            ],
            atomic=True,
        )
        raise_first(place, [identity, *held, streams])
        entries = self._by_shard(streams)
        same = (
            self._connections == place.connections
            and identity is not None
            and identity.decode() == self._identity
        )
        full = any(len(each) >= self._asked for each in entries)
        doubtful = any(
            read_to > _BEGINNING and length <= len(each)
            for read_to, length, each in zip(self._read_to, held, entries, strict=True)
        )
        return None if not same or full or doubtful else entries

    async def _inspect(self) -> list[list[Reply]]:
        """Read without waiting, and see in the same instant what has become of the log.

        The server's answer holds its oldest and its newest entries in full: not for every read.
        """
        place = self._home.place
        while True:
            _, identity, *infos, streams = replies = await place.call_together(
                [
                    *self._home.identify(),
                    *(("XINFO", "STREAM", key) for key in self._keys),
                    self._read_now(),
                ],
                atomic=True,
            )
            self._connections = place.connections
            self._inspected_s = asyncio.get_running_loop().time()
            raise_first(place, [*replies[:2], streams])
            ends = [_ends(place, info) for info in infos]
            if self._goes_on(self._home.identity(identity), ends):
                return self._by_shard(streams)

    def _goes_on(self, identity: str, ends: Sequence[tuple[EntryId | None, EntryId]]) -> bool:
        """Take note of the log's state; False: the reader was sent back to a beginning."""
        another = self._identity not in {None, identity}
        self._identity = identity
        heads = [last for _, last in ends]
        if self._heads_at_start is None or another:
            self._heads_at_start = heads
        goes_on = not another
        for shard, (first, last) in enumerate(ends):
            read_to = self._read_to[shard]
            if another or read_to > last:
                # Another log, or this one without its newest records: what is in it is all new.
                self._read_to[shard] = _BEGINNING
                self._heads_at_start[shard] = last
                self._lost = True
                goes_on = False
            # The entry read last is gone, and newer ones have been there: some may be gone unread.
            # (A reader that starts at the beginning has lost nothing.)
            elif _BEGINNING < read_to < (last if first is None else first):
                self._lost = True
        return goes_on

    def _slice(self, entries: Sequence[list[Reply]], asked: int) -> LogSlice:
        records: list[bytes] = []
        appended_unix_ms: list[int] = []
        probes: list[tuple[int, bytes]] = []
        messages = 0
        numbers = list(self._home.streams)
        for place in sorted(range(len(entries)), key=lambda place: len(entries[place]) >= asked):
            if not entries[place]:
                continue
            ids = [_entry_id(entry) for entry, _ in entries[place]]
            messages += len(ids)
            for entry_id, (_, fields) in zip(ids, entries[place], strict=True):
                if RECORD_FIELD in fields:
                    records.append(fields[RECORD_FIELD])
                    appended_unix_ms.append(entry_id[0])
                elif PROBE_FIELD in fields:
                    probes.append((numbers[place], fields[PROBE_FIELD]))
            self._read_to[place] = ids[-1]
        if messages:
            self._adapt(sum(map(len, records)), messages)
        lost, self._lost = self._lost, False
        heads, identity = self._heads_at_start, self._identity
        entry = ",".join(map(_text, self._read_to))
        return LogSlice(
            records=records,
            appended_unix_ms=appended_unix_ms,
            at_head=all(len(each) < asked for each in entries),
            caught_up=heads is not None
            and all(read >= head for read, head in zip(self._read_to, heads, strict=True)),
            trimmed=lost,
            foreign=messages - len(records) - len(probes),
            position=None if identity is None else LogPosition(identity, entry),
            probes=probes,
        )

    def _adapt(self, slice_bytes: int, slice_records: int) -> None:
        shards = len(self._keys)
        fitting = _SLICE_BYTES * slice_records // max(slice_bytes, 1) // shards
        most = max(_SLICE_RECORDS_MAX // shards, _SHARD_RECORDS_MAX)
        self._asked = min(max(fitting, _SLICE_RECORDS_MIN // shards, 1), most)


def raise_first(place: Place, replies: Sequence[Reply]) -> None:
    """Raise what is wrong with the first of the replies that is an error.

    Raises:
        LogUnavailable: there is one.
    """
    for reply in replies:
        if isinstance(reply, Exception):
            raise place.unusable(reply) from reply


def _ends(place: Place, info: Reply) -> tuple[EntryId | None, EntryId]:
    """Return the oldest entry that there is, and the newest that there has ever been."""
    if isinstance(info, ResponseError) and "no such key" in str(info):
        return None, _BEGINNING  # nobody has appended yet
    if isinstance(info, Exception):
        raise place.unusable(info) from info
    said: dict[bytes, Any] = dict(zip(info[::2], info[1::2], strict=True))
    first = said[b"first-entry"]
    return None if first is None else _entry_id(first[0]), _entry_id(said[b"last-generated-id"])


def _entry_id(text: bytes) -> EntryId:
    at, _, counter = text.partition(b"-")
    return int(at), int(counter)


def _text(entry_id: EntryId) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"
