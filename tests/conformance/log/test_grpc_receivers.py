"""The direct transport towards receivers that this build's indexer is not: broken ones, strangers.

Each is a real gRPC server whose `Ingest` answers as the test says.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc import aio

from kvatlas_events import LogUnavailable, RecordsRejected
from kvatlas_events.grpc_writer import GrpcWriter
from kvatlas_wire.v1 import indexer_pb2 as pb
from kvatlas_wire.v1 import indexer_pb2_grpc

Requests = AsyncIterator[pb.IngestRequest]
Context = Any
"""grpc's servicer context, whose type differs between its two forms."""
Answer = Callable[[Requests, Context], AsyncIterator[pb.IngestResponse]]
Connect = Callable[..., Awaitable[GrpcWriter]]


class Receiver(indexer_pb2_grpc.IndexerServicer):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    async def Ingest(  # noqa: N802 - the RPC's name  # pyright: ignore[reportIncompatibleMethodOverride] - its asyncio form
        self, request_iterator: Requests, context: Context
    ) -> AsyncGenerator[pb.IngestResponse, None]:
        async for response in self.answer(request_iterator, context):
            yield response


@pytest.fixture
async def connect() -> AsyncGenerator[Connect, None]:
    servers: list[aio.Server] = []
    writers: list[GrpcWriter] = []

    async def connect_to(answer: Answer | None, **options: float) -> GrpcWriter:
        servers.append(aio.server())
        if answer is not None:
            receiver = Receiver(answer)  # pyright: ignore[reportAbstractUsage] - only Ingest is used
            indexer_pb2_grpc.add_IndexerServicer_to_server(receiver, servers[-1])
        port = servers[-1].add_insecure_port("127.0.0.1:0")
        await servers[-1].start()
        writers.append(GrpcWriter(f"127.0.0.1:{port}", **options))
        return writers[-1]

    yield connect_to
    for writer in writers:
        await writer.close()
    for server in servers:
        await server.stop(grace=None)


async def append_until(condition: Callable[[], bool], writer: GrpcWriter) -> None:
    """Append again and again, as a publisher does, over streams that end."""
    async with asyncio.timeout(10):
        while not condition():
            with contextlib.suppress(LogUnavailable):
                await writer.append([b"x"])


async def test_a_stranger_that_speaks_grpc_is_named_as_such(connect: Connect) -> None:
    writer = await connect(None)
    with pytest.raises(LogUnavailable, match="takes no records"):
        await writer.append([b"x"])


async def test_a_receiver_that_never_answers_is_given_up(connect: Connect) -> None:
    silent = asyncio.Event()

    async def answer(requests: Requests, _: Context) -> AsyncIterator[pb.IngestResponse]:
        async for request in requests:
            if not silent.is_set():
                silent.set()
                await asyncio.Event().wait()
            yield pb.IngestResponse(accepted=len(request.records))

    writer = await connect(answer, answer_s=0.1)
    with pytest.raises(LogUnavailable, match=r"does not answer within 0\.1 s"):
        await writer.append([b"x"])
    await writer.append([b"x"])  # by another stream


async def test_records_of_every_length_arrive_in_order_cut_into_requests(connect: Connect) -> None:
    arrived: list[list[bytes]] = []

    async def answer(requests: Requests, _: Context) -> AsyncIterator[pb.IngestResponse]:
        async for request in requests:
            arrived.append(list(request.records))
            yield pb.IngestResponse(accepted=len(request.records))

    lengths = [0, 1, 127, 128, 16_383, 16_384, 99_000, 60_000, 300_000, 2_000_000, 5]
    records = [bytes([number]) * length for number, length in enumerate(lengths)]
    writer = await connect(answer)
    await writer.append(records)
    assert [record for request in arrived for record in request] == records
    assert len(arrived) == 6  # what exceeds a request's size has one of its own


async def test_a_refusal_of_the_call_is_a_rejection(connect: Connect) -> None:
    async def answer(_: Requests, context: Context) -> AsyncIterator[pb.IngestResponse]:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another cell")
        yield pb.IngestResponse()

    writer = await connect(answer)
    with pytest.raises(RecordsRejected, match="another cell"):
        await writer.append([b"x"])


async def test_rejected_records_without_a_reason_are_rejected_all_the_same(
    connect: Connect,
) -> None:
    async def answer(requests: Requests, _: Context) -> AsyncIterator[pb.IngestResponse]:
        async for _request in requests:
            yield pb.IngestResponse(rejected=1)

    writer = await connect(answer)
    with pytest.raises(RecordsRejected, match="rejects 1 of 2 records: no reason given"):
        await writer.append([b"x", b"y"])


@pytest.mark.parametrize("responses", [1, 2])
async def test_a_stream_that_ends_or_is_out_of_step_is_opened_again(
    connect: Connect, responses: int
) -> None:
    opened = 0

    async def answer(requests: Requests, _: Context) -> AsyncIterator[pb.IngestResponse]:
        nonlocal opened
        opened += 1
        async for _request in requests:
            for _response in range(responses):
                yield pb.IngestResponse()
            if responses == 1:
                return

    await append_until(lambda: opened == 4, await connect(answer))


async def test_appends_in_flight_share_a_stream_and_its_end(connect: Connect) -> None:
    hold = asyncio.Event()

    async def answer(requests: Requests, context: Context) -> AsyncIterator[pb.IngestResponse]:
        async for _request in requests:
            await hold.wait()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
            yield pb.IngestResponse()

    writer = await connect(answer)
    appends = [asyncio.create_task(writer.append([b"x"])) for _ in range(5)]
    await asyncio.sleep(0)
    appends[2].cancel()
    hold.set()
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert isinstance(results.pop(2), asyncio.CancelledError)
    # Which of the failures is told depends on whether grpc was writing when it ended.
    assert [type(result) for result in results] == [LogUnavailable] * 4


async def test_a_cancelled_append_ends_nobody_elses(connect: Connect) -> None:
    hold = asyncio.Event()

    async def answer(requests: Requests, _: Context) -> AsyncIterator[pb.IngestResponse]:
        async for request in requests:
            await hold.wait()
            yield pb.IngestResponse(accepted=len(request.records))

    writer = await connect(answer)
    appends = [asyncio.create_task(writer.append([b"x"])) for _ in range(3)]
    await asyncio.sleep(0)
    appends[0].cancel()
    await asyncio.sleep(0)
    hold.set()
    await appends[1]
    await appends[2]


async def test_closing_tells_whoever_waits(connect: Connect) -> None:
    began = asyncio.Event()

    async def answer(requests: Requests, _: Context) -> AsyncIterator[pb.IngestResponse]:
        async for _request in requests:
            began.set()
            await asyncio.Event().wait()
            yield pb.IngestResponse()

    writer = await connect(answer)
    waiting = asyncio.create_task(writer.append([b"x"]))
    await began.wait()
    await writer.close()
    with pytest.raises(LogUnavailable, match="ended on this side"):
        await waiting
