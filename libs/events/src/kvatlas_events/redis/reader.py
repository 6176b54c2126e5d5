"""Reads all shards of a Redis log as one log."""

from collections.abc import Sequence

from kvatlas_events.log import LogPosition, LogSlice
from kvatlas_events.redis.group_reader import GroupReader
from kvatlas_events.redis.merged_reader import MergedReader
from kvatlas_events.redis.open import Redis
from kvatlas_events.redis.shard_group import ShardGroup


class RedisReader:
    """A `LogReader`, from the beginning, or after `position` if that is of the same log.

    Raises:
        ValueError: `position` is malformed, or the cell's name cannot be used in a cluster.
    """

    def __init__(self, redis: Redis, *, cell: str, position: LogPosition | None = None) -> None:
        self._redis = redis
        readers = _group_readers(redis.shard_groups(cell), redis.shards, position)
        self._reader = readers[0] if len(readers) == 1 else MergedReader(readers)

    @property
    def name(self) -> str:
        """See `LogReader`."""
        return self._redis.name

    async def read(self, wait_s: float) -> LogSlice:
        """See `LogReader`."""
        return await self._reader.read(wait_s)

    async def close(self) -> None:
        """See `LogReader`."""
        if isinstance(self._reader, MergedReader):
            await self._reader.close()
        await self._redis.close()


def _group_readers(
    groups: Sequence[ShardGroup], shards: int, position: LogPosition | None
) -> list[GroupReader]:
    """Return a reader per group, at `position`, or at the beginning if the shards differ."""
    if position is None:
        return [GroupReader(group) for group in groups]
    identities, entries = position.identity.split(","), position.entry.split(",")
    if (len(identities), len(entries)) != (len(groups), shards):
        return [GroupReader(group, identity=position.identity) for group in groups]
    return [
        GroupReader(group, identity=identity, read_to=[entries[shard] for shard in group.streams])
        for group, identity in zip(groups, identities, strict=True)
    ]
