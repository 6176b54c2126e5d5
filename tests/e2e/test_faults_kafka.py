"""A Kafka broker that is killed, with and without its newest records, under real processes."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from kvatlas_testing.kafka import EmbeddedKafka
from tests.brokers import kafka_broker
from tests.e2e.struck_cell import CELL, StruckCell, struck_cell


@pytest.fixture
def kafka() -> Generator[EmbeddedKafka]:
    with kafka_broker() as broker:
        yield broker


def cut_newest(kafka: EmbeddedKafka) -> int:
    """Cut every partition's file in half, as a crash does to what no disk had; how many lost some."""
    segments = [
        segment
        for segment in kafka.data.glob(f"kvatlas.{CELL}.log-*/*.log")
        if segment.stat().st_size
    ]
    for segment in segments:
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size // 2)
    return len(segments)


async def strike(cell: StruckCell, kafka: EmbeddedKafka, *, how: str) -> None:
    """Kill the broker under load and start it again. Its calls block; the cell runs on."""
    async with cell.working() as traffics:
        await asyncio.to_thread(kafka.kill)
        for traffic in traffics:
            await traffic.more(60)
        match how:
            case "without its newest records":
                assert cut_newest(kafka)
            case "without its data":
                kafka.close()
            case _:
                assert how == "as it was"
        kafka.start()  # here, and not in a thread that ends: the server would end with it


@pytest.mark.slow
@pytest.mark.parametrize("how", ["as it was", "without its newest records", "without its data"])
async def test_a_killed_broker_that_comes_back(
    tmp_path: Path, kafka: EmbeddedKafka, how: str
) -> None:
    async with struck_cell(f"kafka://{kafka.address}", tmp_path) as cell:
        await strike(cell, kafka, how=how)
        await cell.is_whole()
