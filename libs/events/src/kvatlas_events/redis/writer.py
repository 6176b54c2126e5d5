"""Appends a publisher's records to a Redis log."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from kvatlas_events.log import Appended, LogUnavailable
from kvatlas_events.redis.keys import PROBE_FIELD, RECORD_FIELD, shard_of
from kvatlas_events.redis.open import Redis
from kvatlas_events.redis.shard_group import Command, raise_first_error

RECORDS_MAX = 200_000
"""Default number of newest records that a log keeps."""

T = TypeVar("T")


class RedisWriter:
    """A `LogWriter` and `LogProber`; every append trims its streams.

    Args:
        redis: server or cluster; closed with the writer.
        cell: cell of the log.
        records_max: number of newest records, about, that all shards together keep.

    Raises:
        ValueError: the cell's name cannot be used in a cluster.
    """

    def __init__(self, redis: Redis, *, cell: str, records_max: int = RECORDS_MAX) -> None:
        self._redis = redis
        self._groups = redis.shard_groups(cell)
        self._group_of = {
            shard: i for i, group in enumerate(self._groups) for shard in group.streams
        }
        self._stream_of = {
            shard: key for group in self._groups for shard, key in group.streams.items()
        }
        self._shard_records_max = max(1, -(-records_max // redis.shards))
        self._identities: dict[int, str] = {}
        self._shards_checked = False

    @property
    def name(self) -> str:
        """See `LogWriter`."""
        return self._redis.name

    async def append(self, records: Sequence[bytes]) -> Appended:
        """See `LogWriter`; keeps the order among the records of one worker.

        The identity covers the groups that got records: a worker has records in one group only.
        Without records it is the log's identity, or None if the log has several groups.
        """
        if not records:
            identities = await self._send_all({i: [] for i in range(len(self._groups))})
            return Appended(identity=identities[0] if len(identities) == 1 else None)
        await self._check_shards()
        commands: dict[int, list[Command]] = {}
        for record in records:
            shard = shard_of(record, self._redis.shards)
            command = self._add(shard, RECORD_FIELD, record)
            commands.setdefault(self._group_of[shard], []).append(command)
        return Appended(identity=",".join(await self._send_all(commands)))

    async def append_probe(self, mark: bytes) -> frozenset[int]:
        """See `LogProber`; each shard is a part."""
        await self._check_shards()
        commands: dict[int, list[Command]] = {}
        for shard, group in self._group_of.items():
            commands.setdefault(group, []).append(self._add(shard, PROBE_FIELD, mark))
        await self._send_all(commands)
        return frozenset(self._group_of)

    async def close(self) -> None:
        """See `LogWriter`."""
        await self._redis.close()

    def _add(self, shard: int, field: bytes, value: bytes) -> Command:
        trim = ("MAXLEN", "~", self._shard_records_max)
        return ("XADD", self._stream_of[shard], *trim, "*", field, value)

    async def _check_shards(self) -> None:
        """Compare the number of shards before a record goes into a wrong one.

        Shard 0 is in every log, and its identity holds the number.
        """
        if not self._shards_checked:
            await self._send_all({0: []})
            self._shards_checked = True

    async def _send_all(self, commands: dict[int, list[Command]]) -> list[str]:
        """Send each group its commands; return the groups' identities."""
        sending = [self._send(group, each) for group, each in sorted(commands.items())]
        try:
            return await _all_of(sending)
        except LogUnavailable:
            self._shards_checked = False
            raise

    async def _send(self, index: int, commands: Sequence[Command]) -> str:
        group = self._groups[index]
        replies = await group.endpoint.call_together([*group.identify(), *commands], atomic=False)
        raise_first_error(group.endpoint, replies)
        identity = group.identity(replies[1])
        if self._identities.setdefault(index, identity) != identity:
            self._identities[index] = identity
            self._shards_checked = False
        return identity


async def _all_of(sending: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Wait until all have ended, then raise the first error."""
    if len(sending) == 1:
        return [await sending[0]]
    results = await asyncio.gather(*sending, return_exceptions=True)
    values: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        values.append(result)
    return values
