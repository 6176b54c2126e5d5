"""The shards of a log at one endpoint, and the identity that tells one log from another.

An *endpoint* is a server, or one slot of a cluster. One server holds all shards; in a cluster each
shard has a slot of its own.

A log's *identity* is a random value beside the stream; the first writer or reader creates it. On one
server the identity of shard 0 covers all shards. In a cluster each shard has its own, because each
node can lose its data alone. The identity of shard 0 also holds the number of shards, if there are
several. Shard 0 is in every log, so a member with another number in its URL finds out.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvatlas_events.log import LogUnavailable
from kvatlas_events.redis.keys import identity_key, stream_key

Command = Sequence[str | bytes | int]
Reply = Any
"""A reply as the client library returns it; its shape depends on the command."""


class Endpoint(Protocol):
    """A server, or one slot of a cluster: takes commands for the shards that it holds."""

    @property
    def name(self) -> str:
        """Address without credentials."""
        ...

    @property
    def connections(self) -> int:
        """Number of connections made so far; after a new one the server may lack its data."""
        ...

    async def call(self, *command: str | bytes | int, wait_s: float = 0.0) -> Reply:
        """Return the reply to one command that the server may hold back for `wait_s` seconds."""
        ...

    async def call_together(self, commands: Sequence[Command], *, atomic: bool) -> list[Reply]:
        """Return the replies to `commands`, sent at once; a failed command's reply is its error."""
        ...

    def unavailable(self, error: Exception) -> LogUnavailable:
        """Return `error` in words for the operator of the server or the author of its URL."""
        ...


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """The shards of a log at one endpoint."""

    endpoint: Endpoint
    cell: str
    shards: int
    """Number of shards of the whole log."""
    streams: Mapping[int, str]
    """Keys of the streams at this endpoint, by shard, ascending."""

    @property
    def identity_key(self) -> str:
        """The key that holds the identity of these shards."""
        return identity_key(self.cell, min(self.streams))

    def identify(self) -> list[Command]:
        """Return the commands that create the identity if there is none, and read it."""
        fresh = uuid.uuid4().hex
        if 0 in self.streams and self.shards > 1:
            fresh += f"/{self.shards}"
        return [("SET", self.identity_key, fresh, "NX"), ("GET", self.identity_key)]

    def identity(self, reply: bytes) -> str:
        """Return the identity from the server's reply.

        Raises:
            LogUnavailable: the log has another number of shards.
        """
        identity = reply.decode()
        if 0 not in self.streams:
            return identity
        _, _, suffix = identity.partition("/")
        shards = int(suffix) if suffix.isdecimal() else 1
        if shards != self.shards:
            raise LogUnavailable(
                f"{self.endpoint.name}: the log of cell {self.cell!r} has {shards} shards, this URL "
                f"has {self.shards}; write ?shards={shards} in the URL of every member of the cell, "
                "or delete the log's keys to begin a new log"
            )
        return identity


def group_on_server(endpoint: Endpoint, cell: str, shards: int) -> ShardGroup:
    """Return the one group of a log whose shards lie on one server."""
    streams = {shard: stream_key(cell, shard) for shard in range(shards)}
    return ShardGroup(endpoint, cell, shards, streams)


def group_of_shard(endpoint: Endpoint, cell: str, shards: int, shard: int) -> ShardGroup:
    """Return the group of one shard of a cluster's log."""
    return ShardGroup(endpoint, cell, shards, {shard: stream_key(cell, shard)})


def raise_first_error(endpoint: Endpoint, replies: Sequence[Reply]) -> None:
    """Raise the first reply that is an error.

    Raises:
        LogUnavailable: a reply is an error.
    """
    for reply in replies:
        if isinstance(reply, Exception):
            raise endpoint.unavailable(reply) from reply
