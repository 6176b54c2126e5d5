"""Where a cell's log lies in Redis: its shards' keys, and what tells one log from another.

    kvatlas:{CELL}:log:0      kvatlas:{CELL}:identity          shard 0, in every log
    kvatlas:{CELL:N}:log:N    kvatlas:{CELL:N}:identity:N      shard N, if there are several
    kvatlas:{CELL}:claim:W/R  kvatlas:{CELL:N}:claim:N:W/R     of a worker W/R of that shard

The braces are part of the keys: a cluster places a key by what they enclose. Tags that differ in
one digit by 1, 2 and 3 lie in different quarters of the slots (CRC-16 is linear, and these bits of
the digit move a slot by quarters), so that any five shards in a row touch each of three equal nodes.

A log's *identity* is a random value that whoever comes first writes beside the stream. On one
server that of shard 0 speaks for all. In a cluster each shard has its own, for each node can lose
its data alone. Shard 0's has the number of shards behind it, if there are several: it is in every
log, so that whoever has been told another number finds out.
"""

import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from kvatlas_events.log import LogUnavailable
from kvatlas_events.model import Worker
from kvatlas_events.record_worker import worker_of_record

Command = Sequence[str | bytes | int]
Reply = Any
"""What the client library makes of a reply: its shape is the command's."""


class Place(Protocol):
    """Where shards lie that can be asked together: a server, or one slot of a cluster."""

    @property
    def name(self) -> str:
        """Its address without credentials."""
        ...

    @property
    def connections(self) -> int:
        """Another number than before: behind a new connection may be a server without its data."""
        ...

    async def call(self, *command: str | bytes | int, wait_s: float = 0.0) -> Reply:
        """Return the reply to one command that the server may hold back for `wait_s`."""
        ...

    async def call_together(self, commands: Sequence[Command], *, atomic: bool) -> list[Reply]:
        """Return the replies to `commands`, sent at once; a command's own error is its reply."""
        ...

    def unusable(self, error: Exception) -> LogUnavailable:
        """Put `error` into words for whoever runs the server or wrote its URL."""
        ...


@dataclass(frozen=True, slots=True)
class Home:
    """The shards of a log that lie in one place, and their identity."""

    place: Place
    cell: str
    shards: int
    """Of the whole log."""
    streams: Mapping[int, str]
    """The keys of those that lie here, by the shard's number, ascending."""

    def identify(self) -> list[Command]:
        """Make an identity unless there is one, and ask for it."""
        fresh = uuid.uuid4().hex
        if self._tells_the_shards and self.shards > 1:
            fresh += f"/{self.shards}"
        return [("SET", self.identity_key, fresh, "NX"), ("GET", self.identity_key)]

    @property
    def identity_key(self) -> str:
        """Where it stands."""
        return identity_key(self.cell, min(self.streams))

    def identity(self, reply: bytes) -> str:
        """Return what the server gave as the identity.

        Raises:
            LogUnavailable: it is of a log with another number of shards.
        """
        identity = reply.decode()
        if not self._tells_the_shards:
            return identity
        _, _, said = identity.partition("/")
        shards = int(said) if said.isdecimal() else 1
        if shards != self.shards:
            raise LogUnavailable(
                f"{self.place.name}: the log of cell {self.cell!r} has {shards} shards, this URL "
                f"says {self.shards}; write ?shards={shards} in it, as in all of the cell, "
                "or delete the log's keys to begin another"
            )
        return identity

    @property
    def _tells_the_shards(self) -> bool:
        return 0 in self.streams


def home_of_all(place: Place, cell: str, shards: int) -> Home:
    """Return the one home of a log whose shards lie on one server."""
    streams = {shard: _stream(cell, shard) for shard in range(shards)}
    return Home(place, cell, shards, streams)


def home_of_one(place: Place, cell: str, shards: int, shard: int) -> Home:
    """Return the home of one shard: in a cluster each has its own."""
    return Home(place, cell, shards, {shard: _stream(cell, shard)})


def shard_of(record: bytes, shards: int) -> int:
    """Return the shard of a record: the same for all of a worker's, in all releases.

    What is no record of ours goes to shard 0.
    """
    if shards == 1:
        return 0
    worker = worker_of_record(record)
    return 0 if worker is None else shard_of_worker(worker, shards)


@lru_cache(maxsize=65_536)
def shard_of_worker(worker: Worker, shards: int) -> int:
    """Return the shard of a worker's records."""
    return zlib.crc32(f"{worker.worker_id}/{worker.dp_rank}".encode()) % shards


def identity_key(cell: str, shard: int) -> str:
    """Return where the identity stands that is beside a shard's stream, in the same slot."""
    return f"kvatlas:{{{_tag(cell, shard)}}}:identity" + (f":{shard}" if shard else "")


def claim_key(cell: str, shard: int, worker: Worker) -> str:
    """Return where the claim of a worker of the shard stands, in the slot of the shard's stream."""
    number = f"{shard}:" if shard else ""  # for {CELL:1} may be another cell's name
    return f"kvatlas:{{{_tag(cell, shard)}}}:claim:{number}{worker.worker_id}/{worker.dp_rank}"


def _stream(cell: str, shard: int) -> str:
    return f"kvatlas:{{{_tag(cell, shard)}}}:log:{shard}"


def _tag(cell: str, shard: int) -> str:
    return f"{cell}:{shard}" if shard else cell
