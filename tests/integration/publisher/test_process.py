"""`kvatlas publisher` as a user starts it: flags, the ready line, its ports, its end."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvatlas_events import Batch, Shutdown, ShutdownReason, Store, open_reader
from kvatlas_hashing import reference
from kvatlas_publisher.main import command
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_wire.v1 import events_pb2, publisher_pb2, publisher_pb2_grpc
from tests.reference.batch_decoder import decode_batch

KVATLAS = Path(sys.executable).with_name("kvatlas")
NOWHERE = "grpc://127.0.0.1:1"
Engine = Any  # the fixture's class; tests are no packages


@pytest.fixture
def own_logging() -> Iterator[None]:
    """A command sets up its process's logging; this process keeps its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def words(engine: Engine, *more: str, log: str = NOWHERE) -> list[str]:
    return [
        *("--engine", "vllm", "--events", engine.events, "--replay", engine.replay),
        *("--worker-id", "7", "--model", "m", "--block-size", "2", "--log", log, "--cell", "c"),
        *("--grace-s", "1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *more),
    ]


@asynccontextmanager
async def publisher(*given: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        KVATLAS,
        "publisher",
        *given,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


async def refusal(*given: str) -> tuple[int | None, list[str]]:
    async with publisher(*given) as process:
        out, err = await process.communicate()
        assert out == b""
        return process.returncode, err.decode().splitlines()


def stored(*hashes: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": list(range(2 * len(hashes))),
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
    }


async def test_from_an_engines_socket_to_a_redis_log(wire_engine: Engine) -> None:
    async with EmbeddedValkey() as valkey:
        reader = open_reader(valkey.url, cell="c")
        assert reader is not None
        batches: list[Batch] = []
        async with publisher(*words(wire_engine, log=valkey.url)) as process:
            facts = await ready(process)
            assert facts["ready"] is True
            await wire_engine.subscribed()
            wire_engine.send(stored(1, 2))
            while not any(batch.events for batch in batches):
                wire_engine.answer_replays()
                batches += map(decode_batch, (await reader.read(0.05)).records)
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://{facts['admin']}/readyz") as response:
                    assert response.status == 200
                async with http.get(f"http://{facts['admin']}/metrics") as response:
                    page = await response.text()
            device = 'kvatlas_publisher_mirror_blocks{dp_rank="0",tier="device",worker_id="7"} 2.0'
            assert device in page
            assert 'kvatlas_publisher_mirror_pages_bytes{part="idle"}' in page
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            batches += map(decode_batch, (await reader.read(0.05)).records)
        await reader.close()
    events = [event for batch in batches for event in batch.events]
    expected = reference.sequence_hashes(reference.chunk_hashes([0, 1, 2, 3], 2))
    assert isinstance(events[0], Store)
    assert events[0].sequence_hashes.tolist() == expected
    assert events[1:] == [Shutdown(ShutdownReason.PUBLISHER_LEAVING)]


async def test_it_serves_before_engine_and_log_answer_and_names_what_is_missing(
    wire_engine: Engine,
) -> None:
    wire_engine.stop()
    async with publisher(*words(wire_engine)) as process:
        facts = await ready(process)
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://{facts['admin']}/readyz") as response,
        ):
            assert response.status == 503
            assert "worker 7/0: the engine has not been heard of" in await response.text()
        async with grpc.aio.insecure_channel(facts["listen"]) as channel:
            stub: Any = publisher_pb2_grpc.PublisherStub(channel)
            worker = events_pb2.Worker(worker_id=7)
            for call in (
                stub.Replay(publisher_pb2.ReplayRequest(worker=worker)),
                stub.Snapshot(publisher_pb2.SnapshotRequest(worker=worker)),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    _ = [each async for each in call]
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert "worker 7/0 has not been heard of" in str(caught.value.details())
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(service=""))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--state-dir", f"{__file__}/x"], f"--state-dir {__file__}/x cannot be written"),
        (["--log", "kafka://h"], "kafka: this URL is not of the form"),
        (["--log", "memory:"], "memory: works inside one process"),
        (["--events", "nowhere"], "'nowhere' is neither tcp://HOST:PORT nor ipc://PATH"),
        (["--replay", "tcp://*:5558"], "names no host"),
        (["--worker-id", "-1"], "worker_id"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_a_setting_that_cannot_be_used_is_one_line_and_status_2(
    wire_engine: Engine, more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command([*words(wire_engine), *more]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert says in line
    assert out == ""


@pytest.mark.parametrize(
    ("metrics", "models", "advice"),
    [
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="9"} 1.0', "m", "--block-size 16"),
        ("", "other", "use --model other"),
    ],
)
async def test_an_engine_with_other_settings_is_refused_with_the_value_to_use(
    wire_engine: Engine, metrics: str, models: str, advice: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(text=metrics)
        return web.json_response({"data": [{"id": models}, {"id": "lora", "parent": models}]})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    status, lines = await refusal(*words(wire_engine, "--engine-url", url))
    await runner.cleanup()
    assert status == 2
    assert advice in lines[-1]


async def test_several_engines_are_one_process(wire_engine: Engine, tmp_path: Path) -> None:
    document = {
        "model": "m",
        "block-size": 2,
        "log": [NOWHERE],
        "grace-s": 1,
        "engines": [
            {"events": wire_engine.events, "replay": wire_engine.replay, "worker-id": 1},
            {"events": "tcp://127.0.0.1:1", "worker_id": 2, "engine": "sglang", "dp-rank": 1},
        ],
    }
    file = tmp_path / "publisher.yaml"
    file.write_text(json.dumps(document))
    async with publisher("--config", str(file)) as process:
        facts = await ready(process)
        await wire_engine.subscribed()
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://{facts['admin']}/metrics") as response,
        ):
            page = await response.text()
        assert 'kvatlas_publisher_epoch{dp_rank="0",worker_id="1"}' in page
        assert 'kvatlas_publisher_epoch{dp_rank="1",worker_id="2"} 0.0' in page
        process.send_signal(signal.SIGTERM)
        await wire_engine.until(lambda: process.returncode is not None)
        assert process.returncode == 0


async def test_two_engines_that_turn_out_to_be_one_worker_are_refused(
    wire_engine: Engine, old_wire_engine: Engine, tmp_path: Path
) -> None:
    engines = [wire_engine, old_wire_engine]
    document = {
        "model": "m",
        "block-size": 2,
        "log": [NOWHERE],
        "grace-s": 1,
        "engines": [
            {"events": engine.events, "replay": engine.replay, "worker-id": 5} for engine in engines
        ],
    }
    file = tmp_path / "publisher.yaml"
    file.write_text(json.dumps(document))
    async with publisher("--config", str(file)) as process:
        await ready(process)
        for engine in engines:
            await engine.subscribed()
            engine.send(stored(1))
        while process.returncode is None:
            for engine in engines:
                engine.answer_replays()
            await asyncio.sleep(0.01)
        assert process.stderr is not None
        lines = (await process.stderr.read()).decode().splitlines()
        assert process.returncode == 2
        assert lines[-1] == (
            f"kvatlas publisher: engines: {wire_engine.events} and {old_wire_engine.events} are "
            "both worker 5/0; use another worker_id for one of them"
        )
