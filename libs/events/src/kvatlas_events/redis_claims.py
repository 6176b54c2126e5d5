"""The claims of a Redis log: a key for each worker, in the slot of the worker's shard."""

from kvatlas_events.claims import FORGOTTEN_S, Claim, decode_claim
from kvatlas_events.model import Worker
from kvatlas_events.redis_layout import Command, Place, Reply, claim_key, shard_of_worker
from kvatlas_events.redis_log import Redis
from kvatlas_events.redis_shards import raise_first


class RedisClaims:
    """A `ClaimRegister`.

    Every telling takes the key over and returns who had it, in one transaction. An older publisher
    may so take it from a newer one, but learns of that one by it; and the newer one takes it back.

    Args:
        redis: closed with it.
        cell: whose log.

    Raises:
        ValueError: a cluster takes no cell of this name.
    """

    def __init__(self, redis: Redis, *, cell: str) -> None:
        self._redis = redis
        self._cell = cell
        self._place_of: dict[int, Place] = {
            shard: home.place for home in redis.homes(cell) for shard in home.streams
        }

    @property
    def name(self) -> str:
        """As of `ClaimRegister`."""
        return self._redis.name

    async def claimed(self, worker: Worker) -> Claim | None:
        """As of `ClaimRegister`."""
        return await self._ask(worker, [("GET", self._key(worker))])

    async def claim(self, claim: Claim) -> Claim | None:
        """As of `ClaimRegister`."""
        key = self._key(claim.worker)
        take: Command = ("SET", key, claim.encode(), "EX", FORGOTTEN_S)
        before = await self._ask(claim.worker, [("GET", key), take])
        return before if before is not None and claim.yields_to(before) else None

    async def close(self) -> None:
        """As of `ClaimRegister`."""
        await self._redis.close()

    async def _ask(self, worker: Worker, commands: list[Command]) -> Claim | None:
        place = self._place_of[shard_of_worker(worker, self._redis.shards)]
        replies: list[Reply] = await place.call_together(commands, atomic=True)
        raise_first(place, replies)
        return None if replies[0] is None else decode_claim(replies[0], worker)

    def _key(self, worker: Worker) -> str:
        return claim_key(self._cell, shard_of_worker(worker, self._redis.shards), worker)
