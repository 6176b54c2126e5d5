"""The event log as streams of a Redis or Valkey server or cluster; the package's README says how.

A worker's records go to one of the log's shards, chosen by a hash of the worker, and every reader
reads all shards. What was appended is gone when an identity changes: readers then start again from
the beginning of what it stood for, and its writers are told.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from kvatlas_events.log import Appended, LogPosition, LogSlice, LogUnavailable
from kvatlas_events.redis_cluster import RedisCluster
from kvatlas_events.redis_layout import Command, Home, shard_of
from kvatlas_events.redis_merge import Merge
from kvatlas_events.redis_server import ANSWER_S, RedisServer
from kvatlas_events.redis_shards import PROBE_FIELD, RECORD_FIELD, ShardsReader, raise_first
from kvatlas_events.redis_url import RedisUrl

RECORDS_MAX = 200_000
"""How many of the newest records a log keeps, unless it is told otherwise."""

Redis = RedisServer | RedisCluster

T = TypeVar("T")


def open_redis(url: str, *, answer_s: float = ANSWER_S) -> Redis:
    """Open the server or the cluster that `url` names; nothing is connected yet.

    Raises:
        ValueError: the URL cannot be used.
    """
    checked = RedisUrl.of(url)
    opened = RedisCluster if checked.is_cluster else RedisServer
    return opened(checked, answer_s=answer_s)


class RedisWriter:
    """A `LogWriter` and `LogProber`; every append trims its streams.

    Args:
        redis: closed with the writer.
        cell: whose log.
        records_max: about so many of the newest records stay in all shards together.

    Raises:
        ValueError: a cluster takes no cell of this name.
    """

    def __init__(self, redis: Redis, *, cell: str, records_max: int = RECORDS_MAX) -> None:
        self._redis = redis
        self._homes = redis.homes(cell)
        self._home_of = {
            shard: place for place, home in enumerate(self._homes) for shard in home.streams
        }
        self._stream_of = {
            shard: key for home in self._homes for shard, key in home.streams.items()
        }
        self._keep = max(1, -(-records_max // redis.shards))
        self._identities: dict[int, str] = {}
        self._certain = False  # that the log has as many shards as we think

    @property
    def name(self) -> str:
        """As of `LogWriter`."""
        return self._redis.name

    async def append(self, records: Sequence[bytes]) -> Appended:
        """As of `LogWriter`; the order is kept among the records of one worker.

        The identity is that of the places to which the records went: what a writer's worker has in
        another one is none of its own. Without records it is the log's, or None if it has several.
        """
        if not records:
            identities = await self._everywhere({place: [] for place in range(len(self._homes))})
            return Appended(identity=identities[0] if len(identities) == 1 else None)
        await self._make_certain()
        shares: dict[int, list[Command]] = {}
        for record in records:
            shard = shard_of(record, self._redis.shards)
            command = self._add(shard, RECORD_FIELD, record)
            shares.setdefault(self._home_of[shard], []).append(command)
        return Appended(identity=",".join(await self._everywhere(shares)))

    async def append_probe(self, mark: bytes) -> frozenset[int]:
        """As of `LogProber`; each shard is a part."""
        await self._make_certain()
        shares: dict[int, list[Command]] = {}
        for shard, place in self._home_of.items():
            shares.setdefault(place, []).append(self._add(shard, PROBE_FIELD, mark))
        await self._everywhere(shares)
        return frozenset(self._home_of)

    async def close(self) -> None:
        """As of `LogWriter`."""
        await self._redis.close()

    def _add(self, shard: int, field: bytes, value: bytes) -> Command:
        return ("XADD", self._stream_of[shard], "MAXLEN", "~", self._keep, "*", field, value)

    async def _make_certain(self) -> None:
        """Ask for the number of shards before anything is put into one that should not be.

        Shard 0 is in every log, and its identity says how many there are.
        """
        if not self._certain:
            await self._everywhere({0: []})
            self._certain = True

    async def _everywhere(self, shares: dict[int, list[Command]]) -> list[str]:
        """Send each place its share; return their identities."""
        sending = [self._send(place, share) for place, share in sorted(shares.items())]
        try:
            return await _all_of(sending)
        except LogUnavailable:
            self._certain = False
            raise

    async def _send(self, place: int, share: Sequence[Command]) -> str:
        home = self._homes[place]
        replies = await home.place.call_together([*home.identify(), *share], atomic=False)
        raise_first(home.place, replies)
        identity = home.identity(replies[1])
        if self._identities.setdefault(place, identity) != identity:
            self._identities[place] = identity
            self._certain = False
        return identity


class RedisReader:
    """A `LogReader`, from the beginning or after `position` if it is of the same log.

    Raises:
        ValueError: a position that is none of a log like this, or a cell that cannot be.
    """

    def __init__(self, redis: Redis, *, cell: str, position: LogPosition | None = None) -> None:
        self._redis = redis
        readers = _readers(redis.homes(cell), redis.shards, position)
        self._reading = readers[0] if len(readers) == 1 else Merge(readers)

    @property
    def name(self) -> str:
        """As of `LogReader`."""
        return self._redis.name

    async def read(self, wait_s: float) -> LogSlice:
        """As of `LogReader`."""
        return await self._reading.read(wait_s)

    async def close(self) -> None:
        """As of `LogReader`."""
        if isinstance(self._reading, Merge):
            await self._reading.close()
        await self._redis.close()


def _readers(
    homes: Iterable[Home], shards: int, position: LogPosition | None
) -> list[ShardsReader]:
    """Open each home where `position` has left it, all at the beginning if it has other shards."""
    homes = list(homes)
    if position is None:
        return [ShardsReader(home) for home in homes]
    identities, entries = position.identity.split(","), position.entry.split(",")
    if (len(identities), len(entries)) != (len(homes), shards):
        return [ShardsReader(home, identity=position.identity) for home in homes]
    return [
        ShardsReader(home, identity=identity, read_to=[entries[shard] for shard in home.streams])
        for home, identity in zip(homes, identities, strict=True)
    ]


async def _all_of(sending: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Wait for all of them, then raise what one of them raised."""
    if len(sending) == 1:
        return [await sending[0]]
    results = await asyncio.gather(*sending, return_exceptions=True)
    values: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        values.append(result)
    return values
