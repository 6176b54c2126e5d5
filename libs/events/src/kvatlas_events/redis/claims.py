"""Claims of a Redis log: one key per worker, in the slot of the worker's shard."""

from kvatlas_events.claims import CLAIM_TTL_S, Claim, decode_claim
from kvatlas_events.redis.keys import claim_key, shard_of_worker
from kvatlas_events.redis.open import Redis
from kvatlas_events.redis.shard_group import Command, raise_first_error
from kvatlas_wire import WorkerKey


class RedisClaims:
    """A `ClaimRegister`.

    `claim` replaces the key and returns the claim it held before, in one transaction. So an older
    publisher may replace a newer one's claim for a moment. It learns of the newer one from the same
    reply, and the newer one's next call takes the key back.

    Args:
        redis: server or cluster; closed with this register.
        cell: cell of the log.

    Raises:
        ValueError: the cell's name cannot be used in a cluster.
    """

    def __init__(self, redis: Redis, *, cell: str) -> None:
        self._redis = redis
        self._cell = cell
        self._endpoints = {
            shard: group.endpoint for group in redis.shard_groups(cell) for shard in group.streams
        }

    @property
    def name(self) -> str:
        """See `ClaimRegister`."""
        return self._redis.name

    async def claimed(self, worker: WorkerKey) -> Claim | None:
        """See `ClaimRegister`."""
        return await self._read_first(worker, [("GET", self._key(worker))])

    async def claim(self, claim: Claim) -> Claim | None:
        """See `ClaimRegister`."""
        key = self._key(claim.worker)
        replace: Command = ("SET", key, claim.encode(), "EX", CLAIM_TTL_S)
        before = await self._read_first(claim.worker, [("GET", key), replace])
        return before if before is not None and claim.yields_to(before) else None

    async def close(self) -> None:
        """See `ClaimRegister`."""
        await self._redis.close()

    async def _read_first(self, worker: WorkerKey, commands: list[Command]) -> Claim | None:
        """Run `commands` in one transaction; return the claim that the first one reads."""
        endpoint = self._endpoints[self._shard(worker)]
        replies = await endpoint.call_together(commands, atomic=True)
        raise_first_error(endpoint, replies)
        return None if replies[0] is None else decode_claim(replies[0], worker)

    def _key(self, worker: WorkerKey) -> str:
        return claim_key(self._cell, self._shard(worker), worker)

    def _shard(self, worker: WorkerKey) -> int:
        return shard_of_worker(worker, self._redis.shards)
