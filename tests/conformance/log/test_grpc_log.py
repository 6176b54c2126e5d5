"""Promises of the direct transport alone, against the indexer's own server."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator

import numpy as np
import pytest

from kvatlas_events import (
    Batch,
    Clear,
    Event,
    Fenced,
    Heartbeat,
    RecordsRejected,
    Store,
    Tier,
    WorkerKey,
    encode_batch,
    snapshot_records,
)
from kvatlas_events.delivery import Delivery, DeliverySettings
from kvatlas_events.grpc_writer import GrpcWriter
from kvatlas_native import Cell, CellServer
from kvatlas_wire.v1 import indexer_pb2 as pb
from tests.headers import header

WORKER = WorkerKey(7, 1)
HASHES = np.arange(1, 40_001, dtype=np.uint64)


def numbered(first_event_id: int, *events: Event, epoch: int = 5, block_size: int = 16) -> bytes:
    return encode_batch(
        Batch(
            header=header(epoch=epoch, block_size=block_size),
            first_event_id=first_event_id,
            events=events,
        )
    )


def heartbeat(last_event_id: int) -> bytes:
    return encode_batch(
        Batch(
            header=header(),
            heartbeat=Heartbeat(
                last_event_id=last_event_id,
                digests=(),
                load=None,
                capacity_blocks=0,
                engine_url="",
                publisher_rpc="",
                role="",
            ),
        )
    )


class Indexer:
    """A replica that can be stopped and started again, on its port and without its state."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    def start(self) -> None:
        self.cell = Cell(
            cell="test",
            model="model",
            block_size=16,
            hash_contract="contract",
            replica_id="replica",
            version="0",
            lease_ms=60_000,
            hold_back_batches_max=16,
            hold_back_ms=60_000,
            memory_bytes_max=1 << 30,
        )
        self.server = CellServer(self.cell, "127.0.0.1", self.port, threads=1)
        _, self.port = self.server.address

    def stop(self) -> None:
        self.server.stop(0)

    def worker(self) -> pb.WorkerInfo:
        (status,) = pb.GetStatusResponse.FromString(self.cell.status()).workers
        return status.info


@pytest.fixture
def indexer() -> Generator[Indexer, None, None]:
    replica = Indexer()
    yield replica
    replica.stop()


@pytest.fixture
async def open_writer() -> AsyncGenerator[Callable[..., GrpcWriter], None]:
    opened: list[GrpcWriter] = []

    def open_one(port: int, **options: float) -> GrpcWriter:
        opened.append(GrpcWriter(f"127.0.0.1:{port}", **options))
        return opened[-1]

    yield open_one
    for each in opened:
        await each.close()


@pytest.fixture
def writer(indexer: Indexer, open_writer: Callable[..., GrpcWriter]) -> GrpcWriter:
    return open_writer(indexer.port)


async def test_what_is_acknowledged_is_in_the_index(indexer: Indexer, writer: GrpcWriter) -> None:
    appended = await writer.append([numbered(1, Store(None, HASHES[:100], Tier.DEVICE))])
    assert appended.needs_snapshot == frozenset()
    info = indexer.worker()
    assert (info.state, info.blocks, info.last_event_id) == (pb.WORKER_STATE_LIVE, 100, 1)
    await writer.append([numbered(2, Clear()), heartbeat(2)])
    assert indexer.worker().last_event_id == 2


async def test_a_worker_first_seen_in_mid_life_needs_a_snapshot(writer: GrpcWriter) -> None:
    appended = await writer.append([numbered(41, Store(None, HASHES[:1], Tier.DEVICE))])
    assert appended.needs_snapshot == {WORKER}
    parts = snapshot_records(header(), 41, {Tier.DEVICE: HASHES[:1]})
    assert (await writer.append(parts)).needs_snapshot == frozenset()
    appended = await writer.append([numbered(42, Store(1, HASHES[1:2], Tier.DEVICE))])
    assert appended.needs_snapshot == frozenset()


async def test_a_heartbeat_ahead_of_what_arrived_shows_the_loss(writer: GrpcWriter) -> None:
    await writer.append([numbered(1, Clear())])
    assert (await writer.append([heartbeat(1)])).needs_snapshot == frozenset()
    assert (await writer.append([heartbeat(2)])).needs_snapshot == {WORKER}


async def test_another_block_size_is_rejected_in_words(writer: GrpcWriter) -> None:
    with pytest.raises(RecordsRejected, match="block size") as rejected:
        await writer.append([numbered(1, Clear(), block_size=32)])
    assert writer.name in str(rejected.value)
    await writer.append([numbered(1, Clear())])  # the stream lives on


async def test_more_and_larger_requests_than_may_wait_are_all_applied(
    indexer: Indexer, writer: GrpcWriter
) -> None:
    hashes = np.arange(1, 65_536 * 4 + 1, dtype=np.uint64)
    await writer.append(snapshot_records(header(), 1, {Tier.DEVICE: hashes}))
    small = [numbered(number, Clear(Tier.HOST)) for number in range(2, 302)]
    await asyncio.gather(*(writer.append([record]) for record in small))
    info = indexer.worker()
    assert (info.state, info.blocks, info.last_event_id) == (
        pb.WORKER_STATE_LIVE,
        len(hashes),
        301,
    )


async def test_a_later_publisher_fences_an_earlier_one(
    indexer: Indexer, writer: GrpcWriter, open_writer: Callable[..., GrpcWriter]
) -> None:
    await writer.append([numbered(1, Clear(), epoch=5)])
    await open_writer(indexer.port).append([numbered(1, Clear(), epoch=6)])
    with pytest.raises(Fenced) as fenced:
        await writer.append([numbered(2, Clear(), epoch=5)])
    assert (fenced.value.worker, fenced.value.epoch, fenced.value.rival_epoch) == (WORKER, 5, 6)


async def test_a_delivery_brings_a_restarted_replica_back(
    indexer: Indexer, writer: GrpcWriter
) -> None:
    event_id = 0

    def snapshot() -> list[bytes]:
        return snapshot_records(header(), event_id, {Tier.DEVICE: HASHES[: event_id * 100]})

    delivery = Delivery(
        WORKER,
        writer,
        snapshot=snapshot,
        settings=DeliverySettings(flush_s=0, retry_s_min=0.01, retry_s_max=0.02),
    )
    running = asyncio.create_task(delivery.run())

    async def publish() -> None:
        nonlocal event_id
        event_id += 1
        chain = HASHES[(event_id - 1) * 100 : event_id * 100]
        parent = int(chain[0]) - 1 or None
        delivery.push(numbered(event_id, Store(parent, chain, Tier.DEVICE)))
        async with asyncio.timeout(20):
            while delivery.queued_records or delivery.unavailable:  # noqa: ASYNC110 - as an owner looks
                await asyncio.sleep(0.005)

    for _ in range(3):
        await publish()
    assert (indexer.worker().blocks, delivery.counts.snapshots) == (300, 0)
    indexer.stop()
    indexer.start()
    await publish()
    assert await delivery.close(10)
    await running
    info = indexer.worker()
    assert (info.state, info.blocks, info.last_event_id) == (pb.WORKER_STATE_LIVE, 400, 4)
    assert delivery.counts.snapshots == 1


async def test_records_beyond_one_request_are_cut(indexer: Indexer, writer: GrpcWriter) -> None:
    mirror = dict.fromkeys(Tier, HASHES)
    parts = [record for _ in range(4) for record in snapshot_records(header(), 9, mirror)]
    assert sum(map(len, parts)) > 4 << 20
    assert (await writer.append(parts)).needs_snapshot == frozenset()
    assert indexer.worker().blocks == len(HASHES)
