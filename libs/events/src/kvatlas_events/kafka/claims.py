"""Claims of a Kafka log: a topic of their own, which every publisher reads whole.

The topic is small. A claim is written when it is new and again every few minutes, so a live
publisher's claim is always younger than the topic's retention.
"""

import asyncio

from kvatlas_events.claims import Claim, decode_claim
from kvatlas_events.kafka.cluster import KafkaCluster
from kvatlas_events.kafka.reader import KafkaReader
from kvatlas_events.kafka.topics import claims_topic
from kvatlas_events.kafka.writer import KafkaWriter
from kvatlas_wire import WorkerKey

_READ_EVERY_S = 1.0
"""Many workers of one process ask; the topic is read at most this often."""
_RENEW_S = 300.0


class KafkaClaims:
    """A `ClaimRegister`.

    Args:
        cluster: closed with this register.
        cell: cell of the log.

    Raises:
        ValueError: Kafka does not allow a topic of this name.
    """

    def __init__(self, cluster: KafkaCluster, *, cell: str) -> None:
        self._cluster = cluster
        topic = claims_topic(cell)
        self._reader = KafkaReader(cluster, topic)
        self._writer = KafkaWriter(cluster, topic, key_of=_worker_key)
        self._turn = asyncio.Lock()
        self._newest: dict[WorkerKey, list[Claim]] = {}
        """Claims of the highest epoch: one, or two of different publishers that must both yield."""
        self._written: dict[WorkerKey, tuple[Claim, float]] = {}
        self._read_s: float | None = None

    @property
    def name(self) -> str:
        """See `ClaimRegister`."""
        return self._cluster.name

    async def claimed(self, worker: WorkerKey) -> Claim | None:
        """See `ClaimRegister`."""
        async with self._turn:
            await self._read()
        newest = self._newest.get(worker)
        return newest[-1] if newest else None

    async def claim(self, claim: Claim) -> Claim | None:
        """See `ClaimRegister`."""
        async with self._turn:
            await self._read()
        for newest in self._newest.get(claim.worker, ()):
            if claim.yields_to(newest):
                return newest
        written, written_s = self._written.get(claim.worker, (None, 0.0))
        now_s = asyncio.get_running_loop().time()
        if written != claim or now_s - written_s >= _RENEW_S:
            await self._writer.append([claim.encode()])
            self._written[claim.worker] = claim, now_s
        return None

    async def close(self) -> None:
        """See `ClaimRegister`."""
        await self._writer.close()
        await self._reader.close()

    async def _read(self) -> None:
        """Read the claims that are new since the last call."""
        now_s = asyncio.get_running_loop().time()
        if self._read_s is not None and now_s - self._read_s < _READ_EVERY_S:
            return
        at_head = False
        while not at_head:
            slice_ = await self._reader.read(0)
            at_head = slice_.at_head
            if slice_.trimmed:
                self._written.clear()  # another topic, or one without the claims we wrote
            for record in slice_.records:
                self._note(record)
        self._read_s = now_s

    def _note(self, record: bytes) -> None:
        claim = decode_claim(record)
        if claim is None:
            return  # not understood, so nobody yields to it
        equals: list[Claim] = []
        for known in self._newest.get(claim.worker, ()):
            if known.epoch > claim.epoch:
                return
            if known.epoch == claim.epoch and known.instance_id != claim.instance_id:
                equals = [known]
        self._newest[claim.worker] = [*equals, claim]


def _worker_key(record: bytes) -> bytes:
    return record.partition(b" ")[0]
