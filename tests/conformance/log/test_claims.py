"""Two publishers with one worker id, on every transport, on real servers: the newer instance wins.

First what a register of claims promises, on Redis alone, in shards, as a cluster and behind TLS with
an account of few rights, and on Kafka. Then whole sessions, on these and by direct gRPC.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from kvatlas_events import Claim, ClaimRegister, LogUnavailable, WorkerKey, open_claims
from kvatlas_testing.kafka import EmbeddedKafka
from kvatlas_testing.valkey_cluster import EmbeddedValkeyCluster
from tests.conformance.log import redis_transports

WAIT_S = 30.0  # for what will come; a test that waits so long has failed
WORKER = WorkerKey(7, 1)
EPOCH = time.time_ns() // 1_000
OLDER = Claim(WORKER, EPOCH, 1, "old-1")
NEWER = Claim(WORKER, EPOCH + 5, 2, "new-2")


class Server(Protocol):
    cell: str

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class KafkaServer(Server, Protocol):
    address: str
    server: EmbeddedKafka | None

    async def close(self) -> None: ...


class Log:
    """One log on a server in the test's hands, opened as often as the test likes.

    Args:
        forget: deletes what the stopped server kept.
        remembered_s: a register reads again after this; sooner it answers from what it has read.
    """

    def __init__(
        self,
        server: Server,
        url: Callable[[], str],
        forget: Callable[[], None] = lambda: None,
        remembered_s: float = 0.0,
    ) -> None:
        self.server = server
        self.remembered_s = remembered_s
        self._url = url
        self._forget = forget
        self.opened: list[ClaimRegister] = []

    async def lose(self) -> None:
        """Start the server without what it held."""
        await self.server.stop()
        self._forget()
        await self.server.start()

    def register(self) -> ClaimRegister:
        register = open_claims(self._url(), cell=self.server.cell)
        assert register is not None
        self.opened.append(register)
        return register


@asynccontextmanager
async def on_redis(
    transport: redis_transports.RedisTransport,
) -> AsyncGenerator[Log, None]:
    await transport.start()
    yield Log(transport, lambda: transport.url)


@pytest.fixture(params=["redis", "redis in shards", "redis cluster", "redis by TLS", "kafka"])
async def log(
    request: pytest.FixtureRequest,
    kafka_transport: Callable[[], KafkaServer],
    redis_cluster: EmbeddedValkeyCluster,
    tmp_path: Path,
) -> AsyncGenerator[Log, None]:
    if request.param == "kafka":
        kafka = kafka_transport()
        await kafka.start()
        ours = kafka.server
        if ours is None:
            pytest.skip("the Kafka server that these tests were given is not ours to stop")
        log = Log(kafka, lambda: f"kafka://{kafka.address}", ours.close, remembered_s=1.1)
        yield log
        await close(log)
        await kafka.close()
        return
    opened = {
        "redis": redis_transports.alone,
        "redis in shards": lambda: redis_transports.alone(shards=4),
        "redis cluster": lambda: redis_transports.in_cluster(redis_cluster),
        "redis by TLS": lambda: redis_transports.with_tls(tmp_path),
    }[request.param]
    async with opened() as transport, on_redis(transport) as log:
        yield log
        await close(log)


async def close(log: Log) -> None:
    for each in log.opened:
        await each.close()


async def until(ask: Callable[[], Awaitable[Claim | None]], expected: Claim | None) -> None:
    """Ask again and again, over outages, as a publisher does."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                if await ask() == expected:
                    return
            except LogUnavailable:
                pass
            await asyncio.sleep(0.05)


async def test_the_older_publisher_is_told_who_is_newer_and_the_newer_one_is_not(log: Log) -> None:
    old, new = log.register(), log.register()
    assert await old.claim(OLDER) is None
    assert await new.claim(NEWER) is None
    await until(lambda: old.claim(OLDER), NEWER)
    for _ in range(3):
        assert await new.claim(NEWER) is None


async def test_the_order_in_which_they_come_does_not_matter(log: Log) -> None:
    old, new = log.register(), log.register()
    assert await new.claim(NEWER) is None
    assert await old.claim(OLDER) == NEWER
    assert await new.claim(NEWER) is None


async def test_of_a_crowd_at_once_the_newest_alone_goes_on(log: Log) -> None:
    async def outcome(claim: Claim) -> Claim | None:
        """Claim as a publisher does, until fenced, or until all others are."""
        register = log.register()
        while len(fenced) < 4:
            rival = await register.claim(claim)
            if rival is not None:
                fenced.append(claim)
                return rival
            await asyncio.sleep(0.05)
        return None

    fenced: list[Claim] = []
    crowd = [Claim(WORKER, EPOCH + number, number, f"p-{number}") for number in range(5)]
    async with asyncio.timeout(WAIT_S):
        *rivals, last = await asyncio.gather(*map(outcome, crowd))
    assert last is None
    for claim, rival in zip(crowd, rivals, strict=False):
        assert rival is not None
        assert rival.epoch > claim.epoch


async def test_of_two_in_one_epoch_who_claim_at_once_both_are_told(log: Log) -> None:
    one, other = log.register(), log.register()
    a, b = Claim(WORKER, EPOCH, 1, "a"), Claim(WORKER, EPOCH, 2, "b")
    for number, register in enumerate((one, other)):  # both are connected
        await register.claim(Claim(WorkerKey(8, number), EPOCH, number, "c"))
    await asyncio.sleep(log.remembered_s)
    await asyncio.gather(*(each.claimed(WORKER) for each in (one, other)))  # and find nobody
    told: dict[Claim, Claim] = {}
    async with asyncio.timeout(WAIT_S):
        while len(told) < 2:
            rivals = await asyncio.gather(one.claim(a), other.claim(b))
            told |= {c: rival for c, rival in zip((a, b), rivals, strict=True) if rival is not None}
            await asyncio.sleep(0.05)
    assert told == {a: b, b: a}


async def test_a_later_life_of_the_same_instance_is_no_rival(log: Log) -> None:
    register = log.register()
    again = Claim(WORKER, EPOCH + 9, OLDER.instance_id, OLDER.publisher)
    assert await register.claim(OLDER) is None
    assert await register.claim(again) is None
    assert await register.claim(OLDER) is None


async def test_workers_do_not_disturb_one_another(log: Log) -> None:
    one, other = log.register(), log.register()
    for register, claim in (
        (one, OLDER),
        (other, Claim(WorkerKey(7, 0), EPOCH + 5, 2, "new-2")),
        (other, Claim(WorkerKey(8, 1), EPOCH + 5, 2, "new-2")),
    ):
        assert await register.claim(claim) is None
    assert await log.register().claim(OLDER) is None


async def test_who_starts_is_told_the_newest_epoch(log: Log) -> None:
    assert await log.register().claimed(WORKER) is None
    old, new = log.register(), log.register()
    await old.claim(OLDER)
    await new.claim(NEWER)
    assert await log.register().claimed(WORKER) == NEWER


@pytest.mark.ends_log
async def test_what_is_told_again_after_an_outage_is_known_again(log: Log) -> None:
    old, new = log.register(), log.register()
    assert await old.claim(OLDER) is None
    await log.server.stop()
    with pytest.raises(LogUnavailable):
        await new.claim(NEWER)
    await log.server.start()
    await until(lambda: new.claim(NEWER), None)
    await until(lambda: old.claim(OLDER), NEWER)


@pytest.mark.ends_log
async def test_a_log_that_lost_its_data_is_told_again(log: Log) -> None:
    old, new = log.register(), log.register()
    assert await new.claim(NEWER) is None
    await log.lose()

    async def both() -> Claim | None:
        await new.claim(NEWER)
        return await old.claim(OLDER)

    await until(both, NEWER)


def test_between_a_publisher_and_an_indexer_is_no_log_to_claim_in() -> None:
    assert open_claims("grpc://h:1", cell="c") is None
