"""Peers and publishers that answer with malformed bytes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from kvatlas_chassis import HostPort
from kvatlas_indexer.recovery import Outcome
from kvatlas_indexer.state.start import Source, Start
from tests.unit.cell.bench import Bench
from tests.unit.cell.record_source import RecordSource
from tests.unit.indexer.test_recovery import Stage

GARBAGE = b"\xff\xff\xff"


async def say(_request: bytes, _context: object) -> bytes:
    return GARBAGE


async def stream(_request: bytes, _context: object) -> AsyncGenerator[bytes]:
    yield GARBAGE


@asynccontextmanager
async def stranger() -> AsyncGenerator[str]:
    """Serve malformed answers to all calls of a publisher and a peer."""
    one: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(say)
    many: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(stream)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("kvatlas.v1.Indexer", {"GetStatus": one}),
            grpc.method_handlers_generic_handler(
                "kvatlas.v1.Publisher", {"Replay": many, "Snapshot": many}
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_a_malformed_answer_of_a_publisher_costs_one_attempt() -> None:
    async with stranger() as address:
        stage = Stage(None)
        stage.lose(RecordSource(1), address=address)
        await stage.until(lambda: stage.recovery.attempts[Outcome.DECLINED] >= 2)


async def test_a_peer_with_malformed_answers_is_skipped() -> None:
    async with stranger() as address:
        bench = Bench()
        peers = (HostPort.parse(address),)
        start = Start(bench.cell, None, peers, patience_s=10.0, unix_ms=lambda: bench.now_ms)
        assert await start.run() == {}
    assert start.source is Source.LOG
    assert start.peers_skipped == {"declined": 1}
