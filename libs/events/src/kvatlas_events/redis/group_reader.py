"""Reads the shards of one group by one command.

A reader finds out from the server's answers when the log lost data. A restarted server that lost its
data has another identity, and a stream that lost its newest entries ends before the position. In
both cases the reader starts again at the beginning.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from kvatlas_events.log import LogPosition, LogSlice
from kvatlas_events.redis.keys import PROBE_FIELD, RECORD_FIELD
from kvatlas_events.redis.shard_group import (
    Command,
    Endpoint,
    Reply,
    ShardGroup,
    raise_first_error,
)

_SLICE_BYTES = 8 << 20
"""Size that a slice aims at, in bytes. The server can only be asked for a number of records."""
_SLICE_RECORDS = 64
_SLICE_RECORDS_MIN = 16
_SLICE_RECORDS_MAX = 2_048
_SHARD_RECORDS_MAX = 256
"""At least this many records may come from one shard, however many shards there are."""

EntryId = tuple[int, int]
"""Milliseconds of the server's clock, and a counter within them."""
_BEGINNING: EntryId = (0, 0)

_INSPECT_S = 5.0
"""Time after which a full inspection follows, in seconds. Quick reads write nothing, so a demoted
replica would answer them for ever."""


class GroupReader:
    """Reads one `ShardGroup`; used by one task at a time.

    Args:
        group: shards to read.
        identity: identity of the log that `read_to` belongs to; None: any log.
        read_to: id of the last entry read in each shard, as in `LogPosition`; None: from the
            beginning.

    Raises:
        ValueError: `read_to` is malformed.
    """

    def __init__(
        self,
        group: ShardGroup,
        *,
        identity: str | None = None,
        read_to: Sequence[str] | None = None,
    ) -> None:
        self._group = group
        self._keys = list(group.streams.values())
        self._index_of = {key.encode(): i for i, key in enumerate(self._keys)}
        self._identity = identity
        self._read_to = (
            [_BEGINNING] * len(self._keys)
            if read_to is None
            else [_entry_id(entry.encode()) for entry in read_to]
        )
        self._heads_at_start: list[EntryId] | None = None
        self._is_current = False  # the log is the same, and nothing unread has been trimmed
        self._inspected_s = 0.0
        self._connections = 0
        self._lost = False
        self._count = max(_SLICE_RECORDS // len(self._keys), 1)  # entries to ask each shard for

    async def read(self, wait_s: float) -> LogSlice:
        """See `LogReader`; each shard's records in order, shards that are behind last."""
        count = self._count
        now_s = asyncio.get_running_loop().time()
        if now_s - self._inspected_s > _INSPECT_S:
            self._is_current = False
        entries = await self._quick_read() if self._is_current else None
        self._is_current = False  # also if this read fails
        if entries is None:
            entries = await self._inspect()
        if not any(entries) and wait_s > 0:
            # The first append after the read above ends this wait, so nothing is trimmed between.
            streams = await self._group.endpoint.call(
                *("XREAD", "COUNT", count, "BLOCK", max(1, int(wait_s * 1_000))),
                *("STREAMS", *self._keys, *map(_text, self._read_to)),
                wait_s=wait_s,
            )
            entries = self._by_shard(streams)
        self._is_current = all(len(each) < count for each in entries)
        return self._slice(entries, count)

    def _read_command(self) -> Command:
        after = map(_text, self._read_to)
        return ("XREAD", "COUNT", self._count, "STREAMS", *self._keys, *after)

    def _by_shard(self, streams: Reply) -> list[list[Reply]]:
        """Return the (id, fields) of every shard; XREAD leaves out shards without new entries."""
        entries: list[list[Reply]] = [[] for _ in self._keys]
        for key, new in streams or ():
            entries[self._index_of[key]] = new
        return entries

    async def _quick_read(self) -> list[list[Reply]] | None:
        """Read without waiting; None: the log may have changed and must be inspected.

        Trimming removes the oldest entries first. So if a stream holds more entries than the unread
        ones, one that was read is still there, and nothing unread was trimmed.
        """
        endpoint = self._group.endpoint
        identity, *lengths, streams = await endpoint.call_together(
            [
                ("GET", self._group.identity_key),
                *(("XLEN", key) for key in self._keys),
                self._read_command(),
            ],
            atomic=True,
        )
        raise_first_error(endpoint, [identity, *lengths, streams])
        entries = self._by_shard(streams)
        same = (
            self._connections == endpoint.connections
            and identity is not None
            and identity.decode() == self._identity
        )
        full = any(len(each) >= self._count for each in entries)
        maybe_trimmed = any(
            read_to > _BEGINNING and length <= len(each)
            for read_to, length, each in zip(self._read_to, lengths, entries, strict=True)
        )
        return None if not same or full or maybe_trimmed else entries

    async def _inspect(self) -> list[list[Reply]]:
        """Read without waiting, and look at the log's identity and ends in the same transaction.

        The server's answer contains its oldest and newest entries in full, so this is not done for
        every read.
        """
        endpoint = self._group.endpoint
        while True:
            _, identity, *infos, streams = replies = await endpoint.call_together(
                [
                    *self._group.identify(),
                    *(("XINFO", "STREAM", key) for key in self._keys),
                    self._read_command(),
                ],
                atomic=True,
            )
            self._connections = endpoint.connections
            self._inspected_s = asyncio.get_running_loop().time()
            raise_first_error(endpoint, [*replies[:2], streams])
            ends = [_ends(endpoint, info) for info in infos]
            if self._continues(self._group.identity(identity), ends):
                return self._by_shard(streams)

    def _continues(self, identity: str, ends: Sequence[tuple[EntryId | None, EntryId]]) -> bool:
        """Note the log's state; False: a shard is read again from the beginning."""
        another = self._identity not in {None, identity}
        self._identity = identity
        heads = [last for _, last in ends]
        if self._heads_at_start is None or another:
            self._heads_at_start = heads
        continues = not another
        for shard, (first, last) in enumerate(ends):
            read_to = self._read_to[shard]
            if another or read_to > last:
                # Another log, or this one without its newest entries: all of it is new.
                self._read_to[shard] = _BEGINNING
                self._heads_at_start[shard] = last
                self._lost = True
                continues = False
            # The entry read last is gone, so newer ones may be gone unread. A reader at the
            # beginning has lost nothing.
            elif _BEGINNING < read_to < (last if first is None else first):
                self._lost = True
        return continues

    def _slice(self, entries: Sequence[list[Reply]], count: int) -> LogSlice:
        records: list[bytes] = []
        appended_unix_ms: list[int] = []
        probes: list[tuple[int, bytes]] = []
        messages = 0
        shards = list(self._group.streams)
        for i in sorted(range(len(entries)), key=lambda i: len(entries[i]) >= count):
            if not entries[i]:
                continue
            ids = [_entry_id(entry) for entry, _ in entries[i]]
            messages += len(ids)
            for entry_id, (_, fields) in zip(ids, entries[i], strict=True):
                if RECORD_FIELD in fields:
                    records.append(fields[RECORD_FIELD])
                    appended_unix_ms.append(entry_id[0])
                elif PROBE_FIELD in fields:
                    probes.append((shards[i], fields[PROBE_FIELD]))
            self._read_to[i] = ids[-1]
        if messages:
            self._adapt_count(sum(map(len, records)), messages)
        lost, self._lost = self._lost, False
        heads, identity = self._heads_at_start, self._identity
        entry = ",".join(map(_text, self._read_to))
        return LogSlice(
            records=records,
            appended_unix_ms=appended_unix_ms,
            at_head=all(len(each) < count for each in entries),
            caught_up=heads is not None
            and all(read >= head for read, head in zip(self._read_to, heads, strict=True)),
            trimmed=lost,
            foreign=messages - len(records) - len(probes),
            position=None if identity is None else LogPosition(identity, entry),
            probes=probes,
        )

    def _adapt_count(self, slice_bytes: int, slice_records: int) -> None:
        shards = len(self._keys)
        fitting = _SLICE_BYTES * slice_records // max(slice_bytes, 1) // shards
        count_max = max(_SLICE_RECORDS_MAX // shards, _SHARD_RECORDS_MAX)
        self._count = min(max(fitting, _SLICE_RECORDS_MIN // shards, 1), count_max)


def _ends(endpoint: Endpoint, info: Reply) -> tuple[EntryId | None, EntryId]:
    """Return the ids of a stream's oldest entry, and of the newest it ever had."""
    if isinstance(info, ResponseError) and "no such key" in str(info):
        return None, _BEGINNING  # nothing was appended yet
    if isinstance(info, Exception):
        raise endpoint.unavailable(info) from info
    fields: dict[bytes, Any] = dict(zip(info[::2], info[1::2], strict=True))
    first = fields[b"first-entry"]
    return None if first is None else _entry_id(first[0]), _entry_id(fields[b"last-generated-id"])


def _entry_id(text: bytes) -> EntryId:
    at, _, counter = text.partition(b"-")
    return int(at), int(counter)


def _text(entry_id: EntryId) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"
