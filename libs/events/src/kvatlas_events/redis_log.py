"""The event log as one stream of a Redis or Valkey server; the package's README describes it.

A log is told from another of the same name by its *identity*, a random value that whoever comes
first writes beside the stream. A server that restarts without its data gets a new one. Readers
then start again from the beginning, and writers are told that what they appended is gone.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from kvatlas_events.log import Appended, LogPosition, LogSlice
from kvatlas_events.redis_server import Command, RedisServer, Reply

RECORDS_MAX = 200_000
"""How many of the newest records a log keeps, unless it is told otherwise."""

_FIELD = b"r"
_PROBE_FIELD = b"p"
_SLICE_BYTES = 8 << 20
"""A slice aims at so many bytes: the server can be asked for a count of records only."""
_SLICE_RECORDS_MIN = 16
_SLICE_RECORDS_MAX = 2_048

EntryId = tuple[int, int]
"""Milliseconds of the server's clock, and a counter within them."""
_BEGINNING: EntryId = (0, 0)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Where a cell's log lies; the braces keep both in one slot of a cluster."""

    stream: str
    identity: str

    @classmethod
    def of_cell(cls, cell: str) -> "_Keys":
        return cls(f"kvatlas:{{{cell}}}:log:0", f"kvatlas:{{{cell}}}:identity")

    def identify(self) -> list[Command]:
        """Make an identity unless there is one, and ask for it."""
        return [("SET", self.identity, uuid.uuid4().hex, "NX"), ("GET", self.identity)]


class RedisWriter:
    """A `LogWriter`; every append trims the stream to about `records_max` records."""

    def __init__(self, server: RedisServer, *, cell: str, records_max: int = RECORDS_MAX) -> None:
        self._server = server
        self._keys = _Keys.of_cell(cell)
        self._records_max = records_max

    @property
    def name(self) -> str:
        """As of `LogWriter`."""
        return self._server.name

    async def append(self, records: Sequence[bytes]) -> Appended:
        """As of `LogWriter`."""
        key, keep = self._keys.stream, self._records_max
        commands: list[Command] = [
            ("XADD", key, "MAXLEN", "~", keep, "*", _FIELD, record) for record in records
        ]
        replies = await self._server.call_together(
            [*self._keys.identify(), *commands], atomic=False
        )
        _raise_first(self._server, replies)
        return Appended(identity=replies[1].decode())

    async def append_probe(self, mark: bytes) -> frozenset[int]:
        """As of `LogProber`; the stream is the log's one part."""
        key, keep = self._keys.stream, self._records_max
        await self._server.call("XADD", key, "MAXLEN", "~", keep, "*", _PROBE_FIELD, mark)
        return frozenset({0})

    async def close(self) -> None:
        """As of `LogWriter`."""
        await self._server.close()


class RedisReader:
    """A `LogReader`, from the beginning or after `position` if it is of the same log."""

    def __init__(
        self, server: RedisServer, *, cell: str, position: LogPosition | None = None
    ) -> None:
        self._server = server
        self._keys = _Keys.of_cell(cell)
        self._identity = None if position is None else position.identity
        self._read_to = _BEGINNING if position is None else _entry_id(position.entry.encode())
        self._head_at_start: EntryId | None = None
        self._certain = False  # that the log is the same and nothing unread has been trimmed
        self._connections = 0
        self._lost = False
        self._slice_records = 64

    @property
    def name(self) -> str:
        """As of `LogReader`."""
        return self._server.name

    async def read(self, wait_s: float) -> LogSlice:
        """As of `LogReader`."""
        asked = self._slice_records
        entries = await self._glance() if self._certain else None
        self._certain = False  # and stays so if this read fails
        if entries is None:
            entries = await self._inspect()
        if not entries and wait_s > 0:
            # Served by the first append after the glance: nothing can be trimmed in between.
            streams = await self._server.call(
                *("XREAD", "COUNT", asked, "BLOCK", max(1, int(wait_s * 1_000))),
                *("STREAMS", self._keys.stream, _text(self._read_to)),
                wait_s=wait_s,
            )
            entries = _entries(streams)
        self._certain = len(entries) < asked
        return self._slice(entries, at_head=self._certain)

    async def close(self) -> None:
        """As of `LogReader`."""
        await self._server.close()

    def _read_now(self) -> Command:
        key, after = self._keys.stream, _text(self._read_to)
        return ("XREAD", "COUNT", self._slice_records, "STREAMS", key, after)

    async def _glance(self) -> list[Reply] | None:
        """Read without waiting; None: something may be wrong, look closer.

        Trimming takes the oldest entries first. So if the stream holds more than what is unread,
        an entry that has been read is among it, and nothing unread was trimmed.
        """
        identity, held, streams = await self._server.call_together(
            [("GET", self._keys.identity), ("XLEN", self._keys.stream), self._read_now()],
            atomic=True,
        )
        _raise_first(self._server, [identity, held, streams])
        entries = _entries(streams)
        same = (
            self._connections == self._server.connections
            and identity is not None
            and identity.decode() == self._identity
        )
        full = len(entries) >= self._slice_records
        if not same or full or (self._read_to > _BEGINNING and held <= len(entries)):
            return None
        return entries

    async def _inspect(self) -> list[Reply]:
        """Read without waiting, and see in the same instant what has become of the log.

        The server's answer holds its oldest and its newest entry in full: not for every read.
        """
        while True:
            replies = await self._server.call_together(
                [
                    *self._keys.identify(),
                    ("XINFO", "STREAM", self._keys.stream),
                    self._read_now(),
                ],
                atomic=True,
            )
            self._connections = self._server.connections
            _raise_first(self._server, [replies[0], replies[1], replies[3]])
            first, last = _ends(self._server, replies[2])
            if self._goes_on(replies[1].decode(), first, last):
                return _entries(replies[3])

    def _goes_on(self, identity: str, first: EntryId | None, last: EntryId) -> bool:
        """Take note of the log's state; False: the reader was sent back to the beginning."""
        same = self._identity in (None, identity) and self._read_to <= last
        self._identity = identity
        if self._head_at_start is None or not same:
            self._head_at_start = last
        if not same:
            # Another log, or this one without its newest records: what is in it now is all new.
            self._read_to = _BEGINNING
            self._lost = True
            return False
        # The entry read last is gone, and newer ones have been there: some may be gone unread.
        # (A reader that starts at the beginning has lost nothing.)
        oldest = last if first is None else first
        if _BEGINNING < self._read_to < oldest:
            self._lost = True
        return True

    def _slice(self, entries: list[Reply], *, at_head: bool) -> LogSlice:
        ids = [_entry_id(entry) for entry, _ in entries]
        records = [
            (fields[_FIELD], entry_id[0])
            for entry_id, (_, fields) in zip(ids, entries, strict=True)
            if _FIELD in fields
        ]
        probes = [(0, fields[_PROBE_FIELD]) for _, fields in entries if _PROBE_FIELD in fields]
        lost, self._lost = self._lost, False
        if ids:
            self._read_to = ids[-1]
            self._adapt(sum(len(record) for record, _ in records), len(ids))
        head = self._head_at_start
        identity = self._identity
        return LogSlice(
            records=[record for record, _ in records],
            appended_unix_ms=[at for _, at in records],
            at_head=at_head,
            caught_up=head is not None and self._read_to >= head,
            trimmed=lost,
            foreign=len(ids) - len(records) - len(probes),
            position=None if identity is None else LogPosition(identity, _text(self._read_to)),
            probes=probes,
        )

    def _adapt(self, slice_bytes: int, slice_records: int) -> None:
        fitting = _SLICE_BYTES * slice_records // max(slice_bytes, 1)
        self._slice_records = min(max(fitting, _SLICE_RECORDS_MIN), _SLICE_RECORDS_MAX)


def _raise_first(server: RedisServer, replies: Sequence[Reply]) -> None:
    for reply in replies:
        if isinstance(reply, Exception):
            raise server.unusable(reply) from reply


def _ends(server: RedisServer, info: Reply) -> tuple[EntryId | None, EntryId]:
    """Return the oldest entry that there is, and the newest that there has ever been."""
    if isinstance(info, ResponseError) and "no such key" in str(info):
        return None, _BEGINNING  # nobody has appended yet
    if isinstance(info, Exception):
        raise server.unusable(info) from info
    said: dict[bytes, Any] = dict(zip(info[::2], info[1::2], strict=True))
    first = said[b"first-entry"]
    return None if first is None else _entry_id(first[0]), _entry_id(said[b"last-generated-id"])


def _entries(streams: Reply) -> list[Reply]:
    """Return the (id, fields) of an XREAD of one stream; nothing new is an empty answer."""
    return streams[0][1] if streams else []


def _entry_id(text: bytes) -> EntryId:
    at, _, counter = text.partition(b"-")
    return int(at), int(counter)


def _text(entry_id: EntryId) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"
