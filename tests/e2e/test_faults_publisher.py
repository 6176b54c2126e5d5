"""A publisher that is killed or stalls, under a cell of real processes."""

from pathlib import Path

import grpc.aio
import pytest

from kvatlas_testing.child_process import paused
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_wire.v1 import indexer_pb2 as rpc
from kvatlas_wire.v1 import indexer_pb2_grpc as stubs
from tests.e2e.struck_cell import WORKERS, StruckCell, killed, metric, struck_cell, until


async def states(cell: StruckCell, place: int) -> list["rpc.WorkerState.ValueType | None"]:
    """The worker's state on each indexer."""
    said: list[rpc.WorkerState.ValueType | None] = []
    for indexer in cell.indexers:
        async with grpc.aio.insecure_channel(indexer.address()) as channel:
            stub: stubs.IndexerAsyncStub = stubs.IndexerStub(channel)
            status = await stub.GetStatus(rpc.GetStatusRequest())
            known = {each.info.worker.worker_id: each.info.state for each in status.workers}
            said.append(known.get(WORKERS[place]))
    return said


async def becomes(cell: StruckCell, place: int, state: "rpc.WorkerState.ValueType") -> None:
    async def other() -> str | None:
        said = await states(cell, place)
        return None if set(said) == {state} else f"worker {WORKERS[place]} is {said}"

    await until(other)


async def test_a_publisher_killed_in_mid_stream_is_made_good_by_its_next_life(
    tmp_path: Path,
) -> None:
    async with EmbeddedValkey() as valkey, struck_cell(valkey.url, tmp_path) as cell:
        async with cell.working() as traffics:
            await killed(cell.publishers[0])
            await traffics[0].more(60)
            cell.publishers[0] = await cell.start_publisher(0)
        await cell.is_whole()


@pytest.mark.slow
async def test_a_publisher_that_stalls_goes_stale_and_returns_with_nothing_sent_again(
    tmp_path: Path,
) -> None:
    async with EmbeddedValkey() as valkey, struck_cell(valkey.url, tmp_path) as cell:
        asleep = cell.publishers[0]
        before = await metric(asleep, "kvatlas_publisher_snapshots_total")
        epoch = await metric(asleep, "kvatlas_publisher_epoch")
        with paused(asleep.pid):
            await becomes(cell, 0, rpc.WORKER_STATE_STALE)
            assert await states(cell, 1) == [rpc.WORKER_STATE_LIVE] * 2
        await becomes(cell, 0, rpc.WORKER_STATE_LIVE)
        await cell.is_whole()
        assert await metric(asleep, "kvatlas_publisher_snapshots_total") == before
        assert await metric(asleep, "kvatlas_publisher_epoch") == epoch
        await cell.work()
        await cell.is_whole()
