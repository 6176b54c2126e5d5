"""The claims of a Kafka log: a topic of their own, which every publisher reads whole.

It is small: a claim is told when it is new, and again every few minutes, so that what stands in the
topic is younger than its retention for every publisher that lives.
"""

import asyncio

from kvatlas_events.claims import Claim, decode_claim
from kvatlas_events.kafka_log import KafkaReader, KafkaWriter
from kvatlas_events.kafka_server import KafkaServer
from kvatlas_events.kafka_topics import claims_topic
from kvatlas_events.model import Worker

_FRESH_S = 1.0
"""Many workers of one process ask; what was read so lately is not read again for the next."""
_AGAIN_S = 300.0


class KafkaClaims:
    """A `ClaimRegister`.

    Args:
        server: closed with it.
        cell: whose log.

    Raises:
        ValueError: Kafka takes no topic of this name.
    """

    def __init__(self, server: KafkaServer, *, cell: str) -> None:
        self._server = server
        topic = claims_topic(cell)
        self._reader = KafkaReader(server, topic)
        self._writer = KafkaWriter(server, topic, key_of=_worker_key)
        self._turn = asyncio.Lock()
        self._newest: dict[Worker, list[Claim]] = {}
        """Of the highest epoch: one, or two of different publishers, so that each finds another."""
        self._told: dict[Worker, tuple[Claim, float]] = {}
        self._read_s: float | None = None

    @property
    def name(self) -> str:
        """As of `ClaimRegister`."""
        return self._server.name

    async def claimed(self, worker: Worker) -> Claim | None:
        """As of `ClaimRegister`."""
        async with self._turn:
            await self._read()
        newest = self._newest.get(worker)
        return newest[-1] if newest else None

    async def claim(self, claim: Claim) -> Claim | None:
        """As of `ClaimRegister`."""
        async with self._turn:
            await self._read()
        for newest in self._newest.get(claim.worker, ()):
            if claim.yields_to(newest):
                return newest
        told, told_s = self._told.get(claim.worker, (None, 0.0))
        now_s = asyncio.get_running_loop().time()
        if told != claim or now_s - told_s >= _AGAIN_S:
            await self._writer.append([claim.encode()])
            self._told[claim.worker] = claim, now_s
        return None

    async def close(self) -> None:
        """As of `ClaimRegister`."""
        await self._writer.close()
        await self._reader.close()

    async def _read(self) -> None:
        """Take note of what was told since the last time."""
        now_s = asyncio.get_running_loop().time()
        if self._read_s is not None and now_s - self._read_s < _FRESH_S:
            return
        at_head = False
        while not at_head:
            slice_ = await self._reader.read(0)
            at_head = slice_.at_head
            if slice_.trimmed:
                self._told.clear()  # the topic may be another one, or without what we told it
            for record in slice_.records:
                self._note(record)
        self._read_s = now_s

    def _note(self, record: bytes) -> None:
        claim = decode_claim(record)
        if claim is None:
            return  # not ours to understand, and nobody yields to it
        equals: list[Claim] = []
        for known in self._newest.get(claim.worker, ()):
            if known.epoch > claim.epoch:
                return
            if known.epoch == claim.epoch and known.instance_id != claim.instance_id:
                equals = [known]
        self._newest[claim.worker] = [*equals, claim]


def _worker_key(record: bytes) -> bytes:
    return record.partition(b" ")[0]
