"""The real thing: `kvatlas frontend` between a native indexer and the mock engine."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from kvatlas_events import Batch, Header, Heartbeat, Load, Store, Tier, TierDigest, WorkerKey
from kvatlas_events.codec import encode_batch
from kvatlas_hashing import CONTRACT, chunk_hashes, sequence_hashes
from kvatlas_native import Cell, CellServer

MODEL = "mock"
BLOCK_SIZE = 16
NUMBERS = count()
TEXT = "A prompt that is long enough for several blocks of sixteen tokens each. " * 3
KVATLAS = (sys.executable, "-c", "import sys; from kvatlas_cli import main; sys.exit(main())")
ANYWHERE = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


@dataclass
class Service:
    """A process of ours that has said that it is ready."""

    process: Process
    ready: dict[str, Any]

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode


async def spawn(*words: str) -> Process:
    return await asyncio.create_subprocess_exec(*KVATLAS, *words, stdout=PIPE, stderr=PIPE)


@asynccontextmanager
async def service(*words: str) -> AsyncGenerator[Service]:
    process = await spawn(*words)
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        _, errors = await process.communicate()
        pytest.fail(f"{words[0]} ended: {errors.decode()}")
    running = Service(process, json.loads(line))
    try:
        yield running
    finally:
        await running.stop()


async def ended(*words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a process that ends by itself."""
    process = await spawn(*words)
    out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


@dataclass
class Indexer:
    """A replica of the native cell, and what a publisher would have told it of one worker."""

    block_size: int = BLOCK_SIZE
    address: str = ""
    server: CellServer | None = None
    header: Header = field(init=False)

    def __post_init__(self) -> None:
        self.cell = Cell(
            cell="c",
            model=MODEL,
            block_size=self.block_size,
            hash_contract=CONTRACT,
            replica_id="r",
            version="0",
            lease_ms=600_000,
            hold_back_batches_max=16,
            hold_back_ms=1_000,
            memory_bytes_max=1 << 26,
        )
        self.header = Header(
            worker=WorkerKey(7),
            epoch=time.time_ns() // 1_000,
            instance_id=1,
            cell="c",
            model=MODEL,
            block_size=self.block_size,
            hash_contract=CONTRACT,
            publisher="test",
        )

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.cell.set_ready(True)
        self.server = CellServer(self.cell, host, port, threads=1)
        self.address = "{}:{}".format(*self.server.address)

    def tell(self, engine_url: str, hashes: NDArray[np.uint64]) -> None:
        """The worker lives at `engine_url` and holds these blocks."""
        digest = TierDigest(Tier.DEVICE, len(hashes), int(np.bitwise_xor.reduce(hashes)))
        beat = Heartbeat(
            last_event_id=1,
            digests=(digest,),
            load=Load(requests_running=0, requests_waiting=0, kv_usage=0.0),
            capacity_blocks=1 << 14,
            engine_url=engine_url,
            publisher_rpc="",
            role="",
            sent_unix_us=time.time_ns() // 1_000,
        )
        store = Store(None, hashes, Tier.DEVICE)
        records = [
            encode_batch(Batch(header=self.header, first_event_id=1, events=(store,))),
            encode_batch(Batch(header=self.header, heartbeat=beat)),
        ]
        now_ms = time.time_ns() // 1_000_000
        told = self.cell.apply(
            records, transport="memory", appended_unix_ms=[now_ms] * 2, now_unix_ms=now_ms
        )
        assert told.rejected == 0, told.first_rejection


@dataclass
class Running:
    frontend: Service
    client: aiohttp.ClientSession
    text: str  # the prompt that the indexers believe to be held

    async def metric(self, name: str, **labels: str) -> float:
        async with self.client.get(f"http://{self.frontend.ready['admin']}/metrics") as response:
            text = await response.text()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"kvatlas_frontend_{name}" and labels.items() <= sample.labels.items()
        )

    async def until_counted(self, value: float, name: str, **labels: str) -> None:
        """Wait until a metric has this value: an answer's end is counted after its client has it."""
        async with asyncio.timeout(10):
            while await self.metric(name, **labels) != value:  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.02)

    async def ready(self) -> int:
        async with self.client.get(f"http://{self.frontend.ready['admin']}/readyz") as response:
            return response.status

    async def until_ready(self) -> None:
        while await self.ready() != 200:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.02)

    async def complete(self, **fields: object) -> tuple[int, dict[str, str], dict[str, Any]]:
        body = {"model": MODEL, "prompt": self.text, "max_tokens": 2} | fields
        async with self.client.post("/v1/completions", json=body) as response:
            return response.status, dict(response.headers), await response.json()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The address of a mock engine, which all tests of this file share."""
    words = ("--model", MODEL, "--block-size", str(BLOCK_SIZE), "--speedup", "inf")
    command = [*KVATLAS, "mock-engine", "--listen", "127.0.0.1:0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["listen"]
        process.terminate()


@asynccontextmanager
async def frontend(
    engine: str, indexers: Sequence[Indexer], *words: str
) -> AsyncGenerator[Running]:
    async with AsyncExitStack() as stack:
        url = f"http://{engine}"
        client = await stack.enter_async_context(aiohttp.ClientSession())
        text = f"{next(NUMBERS)} {TEXT}"  # of this test alone
        async with client.post(f"{url}/tokenize", json={"prompt": text}) as response:
            tokens = (await response.json())["tokens"]
        hashes = sequence_hashes(chunk_hashes(np.array(tokens, dtype=np.uint32), BLOCK_SIZE))
        for indexer in indexers:
            if indexer.server is None:
                indexer.serve()
            indexer.tell(url, hashes)
        started = await stack.enter_async_context(
            service(
                "frontend",
                *ANYWHERE,
                *("--model", MODEL, "--block-size", str(BLOCK_SIZE), "--deadline-ms", "5000"),
                *("--indexer", *(indexer.address for indexer in indexers)),
                *words,
            )
        )
        session = await stack.enter_async_context(
            aiohttp.ClientSession(f"http://{started.ready['listen']}")
        )
        yield Running(started, session, text)


async def test_a_prompt_that_is_held_goes_to_its_holder_and_counts_agree(engine: str) -> None:
    """The engine holds nothing in truth, so its `cached_tokens` break the promise, once."""
    async with frontend(engine, [Indexer(), Indexer()]) as running:
        await running.until_ready()
        status, headers, answer = await running.complete()
        assert status == 200
        assert headers["x-kvatlas-worker"] == "7/0"
        assert headers["x-kvatlas-reason"] == "kv-match"
        usable = (answer["usage"]["prompt_tokens"] - 1) // BLOCK_SIZE
        assert int(headers["x-kvatlas-depth"]) == usable
        assert usable > 10
        await running.until_counted(1, "prompts_compared_total", result="equal")
        await running.until_counted(1, "promises_total", result="short")
        await running.complete()
        await running.until_counted(1, "promises_total", result="kept")
        assert await running.metric("prompts_compared_total", result="drift") == 0

        status, headers, _ = await running.complete(prompt="something else entirely, " * 4)
        assert (status, headers["x-kvatlas-reason"]) == (200, "no-match")

        messages = [{"role": "user", "content": "hello, engine"}]
        body = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": 3}
        async with running.client.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        async with running.client.get("/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == [MODEL]
        assert await running.frontend.stop() == 0


async def test_a_replica_that_goes_away_costs_no_match(engine: str) -> None:
    indexers = [Indexer(), Indexer()]
    async with frontend(engine, indexers) as running:
        await running.until_ready()
        for number in range(6):
            if number == 3:
                assert indexers[0].server is not None
                indexers[0].server.stop(0.0)
            status, headers, _ = await running.complete()
            assert (status, headers["x-kvatlas-reason"]) == (200, "kv-match")
        assert await running.metric("fallbacks_total") == 0


async def test_without_any_indexer_the_last_table_is_served_by_load(engine: str) -> None:
    indexers = [Indexer()]
    async with frontend(engine, indexers, "--deadline-ms", "50") as running:
        await running.until_ready()
        assert indexers[0].server is not None
        indexers[0].server.stop(0.0)
        status, headers, _ = await running.complete()
        assert (status, headers["x-kvatlas-reason"]) == (200, "fallback-no-indexer")
        assert await running.metric("fallbacks_total", reason="fallback-no-indexer") == 1


async def test_an_indexer_that_comes_late_is_waited_for(engine: str) -> None:
    late = Indexer()
    late.serve()
    assert late.server is not None
    host, port = late.server.address
    late.server.stop(0.0)
    async with frontend(engine, [late]) as running:
        assert await running.ready() == 503
        status, _, answer = await running.complete()
        assert (status, answer["error"]["code"]) == (503, "no_worker_available")
        late.serve(host, port)
        await running.until_ready()
        status, headers, _ = await running.complete()
        assert (status, headers["x-kvatlas-reason"]) == (200, "kv-match")


async def test_another_block_size_is_loud_at_the_start() -> None:
    indexer = Indexer(block_size=512)
    indexer.serve()
    words = ("--model", MODEL, "--block-size", "16", "--indexer", indexer.address)
    status, _, errors = await ended("frontend", *ANYWHERE, *words)
    last = errors.splitlines()[-1]
    assert status == 1
    assert "block size 16" in last
    assert "has 512" in last
    assert "Traceback" not in errors


async def test_a_start_that_cannot_work_ends_with_one_line(engine: str) -> None:
    words = ("--model", MODEL, "--block-size", "16", "--indexer", "127.0.0.1:1")
    attempts = {
        ("--listen", engine): (1, f"cannot listen on --listen {engine}"),
        ("--policy", "kv-awre"): (2, "--policy kv-awre"),
    }
    results = await asyncio.gather(
        *(ended("frontend", "--admin", "127.0.0.1:0", *words, *extra) for extra in attempts)
    )
    for (status, out, errors), (expected, text) in zip(results, attempts.values(), strict=True):
        assert status == expected
        assert out == ""
        assert len(errors.splitlines()) == 1
        assert text in errors
