"""An indexer process to which publishers push, tested over its sockets."""

import asyncio
from collections.abc import AsyncGenerator

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from kvatlas_hashing import reference
from kvatlas_verify.arrow import rows as arrow_rows
from kvatlas_wire.v1 import events_pb2 as pb
from kvatlas_wire.v1 import indexer_pb2 as rpc
from kvatlas_wire.v1 import indexer_pb2_grpc as stubs
from tests.integration.indexer.process import IndexerProcess, fetch, indexer
from tests.unit.cell.record_source import RecordSource, shutdown, store

HASHES_MAX = 131_072


@pytest.fixture
async def process() -> AsyncGenerator[IndexerProcess]:
    async with indexer("--log", "grpc:") as started:
        await started.ready()
        yield started


@pytest.fixture
async def channel(process: IndexerProcess) -> AsyncGenerator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(process.listen) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> "stubs.IndexerAsyncStub":
    return stubs.IndexerStub(channel)


async def ingest(
    stub: "stubs.IndexerAsyncStub", *requests: list[bytes]
) -> list[rpc.IngestResponse]:
    calls = stub.Ingest(iter([rpc.IngestRequest(records=records) for records in requests]))
    return [answer async for answer in calls]


async def find(
    stub: "stubs.IndexerAsyncStub", *hashes: int, limit: int = 0
) -> list[tuple[int, int, int]]:
    answer = await stub.FindMatches(
        rpc.FindMatchesRequest(sequence_hashes=hashes, limit=limit), timeout=10
    )
    return list(zip(answer.worker_ids, answer.dp_ranks, answer.depths, strict=True))


async def test_pushed_records_are_acknowledged_in_order_and_matched(
    stub: "stubs.IndexerAsyncStub",
) -> None:
    a, b = RecordSource(1), RecordSource(2**64 - 1, dp_rank=300)
    late = RecordSource(3)
    late.last_event_id = 9
    answers = await ingest(
        stub,
        [a.events(store(1, 2, 3)), b.events(store(1, 2))],
        [b"nonsense", a.events(store(4)), late.events(store(1))],
        [RecordSource(5, block_size=32).events(store(1))],
    )
    assert [(answer.accepted, answer.rejected) for answer in answers] == [(2, 0), (2, 1), (0, 1)]
    assert answers[1].first_rejection == "not a kvatlas record"
    assert "32" in answers[2].first_rejection
    positions = [(p.worker.worker_id, p.last_event_id, p.whole) for p in answers[1].positions]
    assert positions == [(1, 2, True), (3, 0, False)]
    assert await find(stub, 1, 2, 3, 4) == [(1, 0, 4), (2**64 - 1, 300, 2)]
    assert await find(stub, 1, 2, 3, 4, limit=1) == [(1, 0, 4)]
    assert await find(stub) == []
    assert await find(stub, 77) == []


async def test_chunk_hashes_and_sequence_hashes_find_the_same(
    stub: "stubs.IndexerAsyncStub",
) -> None:
    chain = reference.sequence_hashes([11, 12, 13])
    await ingest(stub, [RecordSource(1).events(store(*chain))])
    by_chunks = await stub.FindMatches(rpc.FindMatchesRequest(chunk_hashes=[11, 12, 13, 14]))
    assert list(by_chunks.depths) == [3]
    assert await find(stub, *chain) == [(1, 0, 3)]


REFUSALS = (
    (rpc.FindMatchesRequest(model="other"), grpc.StatusCode.FAILED_PRECONDITION, "other", "model"),
    (rpc.FindMatchesRequest(block_size=32), grpc.StatusCode.FAILED_PRECONDITION, "32", "16"),
    (
        rpc.FindMatchesRequest(hash_contract="sha-1"),
        grpc.StatusCode.FAILED_PRECONDITION,
        "sha-1",
        "xxh3-1337-v1",
    ),
    (
        rpc.FindMatchesRequest(chunk_hashes=[1], sequence_hashes=[1]),
        grpc.StatusCode.INVALID_ARGUMENT,
        "chunk_hashes",
        "sequence_hashes",
    ),
    *(
        (
            rpc.FindMatchesRequest(chunk_hashes=range(hashes)),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            str(HASHES_MAX),
            "hashes",
        )
        for hashes in (HASHES_MAX + 1, 4 * HASHES_MAX)
    ),
)


async def test_an_invalid_request_gets_the_reason(
    stub: "stubs.IndexerAsyncStub",
) -> None:
    for request, code, *words in REFUSALS:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stub.FindMatches(request)
        details = failure.value.details() or ""
        assert failure.value.code() == code, details
        assert all(word in details for word in words), details
        assert await find(stub, 1) == []


async def test_the_largest_request_is_answered(stub: "stubs.IndexerAsyncStub") -> None:
    await ingest(stub, [RecordSource(1).events(store(*range(1, 65_537)))])
    answer = await stub.FindMatches(rpc.FindMatchesRequest(sequence_hashes=range(1, HASHES_MAX)))
    assert list(answer.depths) == [65_536]


async def test_watchers_get_all_workers_then_every_change(stub: "stubs.IndexerAsyncStub") -> None:
    a, b = RecordSource(1), RecordSource(2)
    await ingest(
        stub, [a.events(store(1)), a.heartbeat(facts=pb.Heartbeat(engine_url="http://127.0.0.1:1"))]
    )
    watch = stub.WatchWorkers(rpc.WatchWorkersRequest(block_size=16))
    first = await anext(aiter(watch))
    assert (first.full, first.cell, first.model, first.block_size) == (True, "blue", "model", 16)
    assert [(w.worker.worker_id, w.state) for w in first.workers] == [(1, rpc.WORKER_STATE_LIVE)]
    load = pb.Load(requests_running=4)
    await ingest(stub, [b.events(store(1)), a.heartbeat(facts=pb.Heartbeat(load=load))])
    seen: dict[int, rpc.WorkerInfo] = {}
    async for change in watch:
        assert not change.full
        seen |= {worker.worker.worker_id: worker for worker in change.workers}
        if {1, 2} <= seen.keys():
            break
    assert seen[1].load == load
    await ingest(stub, [a.events(shutdown(pb.Shutdown.REASON_ENGINE_GONE))])
    removed = [worker.worker_id async for change in _one(watch) for worker in change.removed]
    assert removed == [1]
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await anext(aiter(stub.WatchWorkers(rpc.WatchWorkersRequest(model="other"))))
    assert failure.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def _one(
    watch: "grpc.aio.UnaryStreamCall[rpc.WatchWorkersRequest, rpc.WatchWorkersResponse]",
) -> AsyncGenerator[rpc.WatchWorkersResponse]:
    async for change in watch:
        if change.removed:
            yield change
            return


async def test_health_and_reflection_answer(process: IndexerProcess) -> None:
    await asyncio.to_thread(check_health_and_reflection, process.listen)


def check_health_and_reflection(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for service in ("", "kvatlas.v1.Indexer"):
            answer = check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = ProtoReflectionDescriptorDatabase(channel)
        names = set(reflection.get_services())
        assert {"kvatlas.v1.Indexer", "grpc.health.v1.Health"} <= names
        described = reflection.FindFileContainingSymbol("kvatlas.v1.FindMatchesRequest")
        assert "FindMatchesRequest" in [message.name for message in described.message_type]


async def test_status_and_a_contradictory_dump_request(stub: "stubs.IndexerAsyncStub") -> None:
    await ingest(stub, [RecordSource(1).events(store(1, 2))])
    status = await stub.GetStatus(rpc.GetStatusRequest())
    assert (status.ready, status.cell, status.memberships) == (True, "blue", 2)
    assert [(log.transport, log.alive) for log in status.logs] == [("grpc", True)]
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await anext(aiter(stub.Dump(rpc.DumpRequest(digests=True, resumable=True))))
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_dump_is_an_arrow_stream(
    stub: "stubs.IndexerAsyncStub",
) -> None:
    source = RecordSource(7)
    on_host = store(9, 2, tier=pb.TIER_HOST)
    await ingest(stub, [RecordSource(3).events(store(5)), source.events(store(2, 1), on_host)])
    slices = [message.arrow_ipc async for message in stub.Dump(rpc.DumpRequest())]
    rows = list(arrow_rows(iter(slices)))
    assert [(row.worker_id, row.tier, row.event_id, row.blocks, row.digest) for row in rows] == [
        (3, "device", 1, 1, 5),
        (7, "device", 2, 2, 3),
        (7, "host", 2, 2, 11),
    ]
    assert [row.sequence_hashes.tolist() for row in rows] == [[5], [1, 2], [2, 9]]


async def test_the_number_of_running_dumps_is_bounded(stub: "stubs.IndexerAsyncStub") -> None:
    # Never read, so they keep running: each has more slices than a connection buffers.
    source = RecordSource(1)
    for first in range(0, 2_000_000, 50_000):
        await ingest(stub, [source.events(store(*range(first, first + 50_000)))])
    running = [stub.Dump(rpc.DumpRequest()) for _ in range(2)]
    for call in running:
        await call.initial_metadata()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await anext(aiter(stub.Dump(rpc.DumpRequest())))
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for call in running:
        call.cancel()


async def test_the_admin_port_serves_health_readiness_and_metrics(
    stub: "stubs.IndexerAsyncStub", process: IndexerProcess
) -> None:
    await ingest(stub, [RecordSource(1).events(store(1)), b"junk"])
    await find(stub, 1)
    assert (await fetch(process.admin, "/healthz"))[0] == 200
    assert await fetch(process.admin, "/readyz") == (200, "ready\n")
    status, page = await fetch(process.admin, "/metrics")
    assert status == 200
    lines = page.splitlines()
    for line in (
        "kvatlas_indexer_records_accepted_total 1.0",
        'kvatlas_indexer_records_rejected_total{reason="foreign"} 1.0',
        'kvatlas_indexer_workers{state="live"} 1.0',
        'kvatlas_indexer_find_matches_total{code="ok"} 1.0',
        "kvatlas_indexer_find_matches_seconds_count 1.0",
        'kvatlas_indexer_log_alive{transport="grpc"} 1.0',
    ):
        assert line in lines


async def test_sigterm_ends_open_streams_and_the_process_within_its_grace_period(
    stub: "stubs.IndexerAsyncStub", process: IndexerProcess
) -> None:
    watch = stub.WatchWorkers(rpc.WatchWorkersRequest())
    assert (await anext(aiter(watch))).full

    async def drain() -> grpc.StatusCode:
        try:
            async for _ in watch:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    ending = asyncio.create_task(drain())
    assert await process.stop() == (0, "")
    assert await ending == grpc.StatusCode.UNAVAILABLE
