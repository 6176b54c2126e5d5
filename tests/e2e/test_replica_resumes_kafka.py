"""A replica on Kafka that stops and comes back reads what it has missed, and nothing else."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from kvatlas_events.kafka.cluster import KafkaCluster
from kvatlas_events.kafka.topics import log_topic
from kvatlas_events.kafka.url import KafkaUrl
from kvatlas_events.kafka.writer import KafkaWriter
from kvatlas_testing.kafka import EmbeddedKafka
from kvatlas_verify.main import command as verify
from tests.brokers import kafka_broker
from tests.e2e.test_replica_life import chain, dump, metric, reaches
from tests.integration.indexer.process import indexer
from tests.unit.cell.record_source import RecordSource, remove, store

WORKERS = (3, 7, 9, 12)
BLOCKS = 120
MORE = 30
RECORDS = 'log_records{transport="kafka"}'


@pytest.fixture
def kafka() -> Generator[EmbeddedKafka]:
    with kafka_broker() as broker:
        yield broker


def more(source: RecordSource) -> list[bytes]:
    """The worker's records while the replica is away: some blocks go, others come."""
    gone = remove(*range(BLOCKS, BLOCKS - MORE, -1))
    come = [source.events(store(1_000 + number)) for number in range(MORE)]
    return [source.events(gone), *come, source.heartbeat()]


async def test_a_replica_that_was_away_goes_on_where_it_stopped(
    tmp_path: Path, kafka: EmbeddedKafka
) -> None:
    url = f"kafka://{kafka.address}"
    # Patient: what is appended again would be counted twice.
    writer = KafkaWriter(KafkaCluster(KafkaUrl((kafka.address,)), answer_s=60), log_topic("blue"))
    sources = [RecordSource(worker_id=worker) for worker in WORKERS]
    before = [record for source in sources for record in chain(source, BLOCKS)]
    await writer.append(before)
    away = ("--log", url, "--snapshot-dir", str(tmp_path))
    async with indexer("--log", url) as constant:
        await constant.ready()
        async with indexer(*away) as first:
            await first.ready()
            assert await metric(first, RECORDS) == len(before)
            assert (await first.stop())[0] == 0
        missed = [record for source in sources for record in more(source)]
        await writer.append(missed)
        await reaches(constant, RECORDS, len(before) + len(missed))
        async with indexer(*away) as second:
            await second.ready()
            assert await metric(second, 'start{source="file"}') == 1
            assert await dump(second) == await dump(constant)
            # It has read what it missed, and not one record of those before.
            assert await metric(second, RECORDS) == len(missed)
            assert await metric(second, "records_accepted_total") == len(missed)
            sides = ["--indexer", constant.listen, "--indexer", second.listen]
            assert await asyncio.to_thread(verify, sides) == 0
            # And it follows: what comes now reaches both alike.
            last = [source.events(store(5_000)) for source in sources]
            await writer.append(last)
            await reaches(second, RECORDS, len(missed) + len(last))
            await reaches(constant, RECORDS, len(before) + len(missed) + len(last))
            assert await dump(second) == await dump(constant)
    await writer.close()
