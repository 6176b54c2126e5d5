"""Starts of an indexer: with a log, with an unreachable log, and with invalid settings."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import grpc
import grpc.aio
import pytest

from kvatlas_events import open_writers
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_wire.v1 import indexer_pb2 as rpc
from kvatlas_wire.v1 import indexer_pb2_grpc as stubs
from tests.integration.indexer.process import TERMS, fetch, indexer, refusal
from tests.unit.cell.record_source import RecordSource, store

_POLLS = 600


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


async def answered(admin: int, settled: Callable[[str], bool]) -> tuple[int, str]:
    """Return the answer of /readyz once the process listens and `settled` holds for the text."""
    for _ in range(_POLLS):
        with contextlib.suppress(OSError):
            status, text = await fetch(f"127.0.0.1:{admin}", "/readyz")
            if settled(text):
                return status, text
        await asyncio.sleep(0.05)
    raise AssertionError


async def test_a_log_is_read_to_its_head_before_the_replica_is_ready() -> None:
    async with EmbeddedValkey() as valkey:
        (writer,) = open_writers(valkey.url, cell="blue")
        source = RecordSource()
        await writer.append([source.events(store(number)) for number in range(1, 2_001)])
        async with indexer("--log", valkey.url) as process:
            await process.ready()
            async with grpc.aio.insecure_channel(process.listen) as channel:
                stub: stubs.IndexerAsyncStub = stubs.IndexerStub(channel)
                query = rpc.FindMatchesRequest(sequence_hashes=range(1, 2_001))
                assert list((await stub.FindMatches(query)).depths) == [2_000]
                status = await stub.GetStatus(rpc.GetStatusRequest())
            (log,) = status.logs
            assert (log.transport, log.alive, log.records) == ("redis", True, 2_000)
            assert (await process.stop())[0] == 0
        await writer.close()


async def test_an_unreachable_log_is_reported_and_retried() -> None:
    port, admin = free_port(), free_port()
    words = ("--log", f"redis://127.0.0.1:{port}", "--log", "grpc:")
    async with indexer(*words, admin=f"127.0.0.1:{admin}") as process:
        url = f"log redis://127.0.0.1:{port}"
        status, _ = await answered(
            admin, lambda text: text.startswith(url) and "not read yet" not in text
        )
        assert status == 503
        assert (await fetch(f"127.0.0.1:{admin}", "/healthz"))[0] == 200
        async with EmbeddedValkey(port=port):
            facts = await process.ready()
            assert facts["ready"] is True
            assert (await fetch(process.admin, "/readyz"))[0] == 200
            assert (await process.stop())[0] == 0


async def test_a_replica_that_waits_for_its_log_still_ends_on_sigterm_without_a_ready_line() -> (
    None
):
    admin = free_port()
    words = ("--log", f"redis://127.0.0.1:{free_port()}")
    async with indexer(*words, admin=f"127.0.0.1:{admin}") as process:
        await answered(admin, lambda _: True)
        assert await process.stop() == (0, "")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--modle", "m"), "--modle"),
        (("--log", "memory:"), "memory:"),
        (("--log", "kafka://user:secret@127.0.0.1:9092?sasl_mechanism=GSSAPI"), "kafka:"),
        (("--peer", "nowhere"), "nowhere"),
    ],
)
async def test_an_invalid_setting_is_one_line_and_exit_2(
    words: tuple[str, ...], named: str
) -> None:
    status, lines = await refusal(*TERMS, *words)
    assert (status, len(lines)) == (2, 1)
    assert named in lines[0]


@pytest.mark.parametrize("flag", ["listen", "admin"])
async def test_a_port_in_use_is_one_line_and_exit_1(flag: str) -> None:
    other = {"listen": "admin", "admin": "listen"}[flag]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = (f"--{flag}", address, f"--{other}", "127.0.0.1:0")
        status, lines = await refusal(*TERMS, "--log-level", "error", *words)
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith(f"cannot listen on --{flag} {address}: ")
    assert lines[0].lower().endswith("address already in use")
