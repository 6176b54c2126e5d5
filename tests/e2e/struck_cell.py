"""A small cell of real processes for tests that kill and stop them, and what must hold at the end.

Two mock engines with a publisher each, a log that the test brings, two indexers. Engines compute in
no time and their caches are small, so that a few hundred requests store and evict all the time.
Every wait is for something that can be seen from outside, with a deadline that only a failure meets.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc
import grpc.aio

from kvatlas_loadtest.prometheus import parse, total
from kvatlas_loadtest.supervisor import Command, Process, Supervisor, kvatlas
from kvatlas_verify.arrow import rows
from kvatlas_verify.main import command as verify
from kvatlas_wire.v1 import indexer_pb2 as rpc
from kvatlas_wire.v1 import indexer_pb2_grpc as stubs
from tests.e2e.engine_truth import BLOCK_SIZE, truth_of

CELL = "blue"
WORKERS = (7, 8)
LEASE_S = 3.0
_BLOCKS = 192
_HEARTBEAT_S = 0.2
_SEEN_WITHIN_S = 45.0
_POLL_S = 0.05
_TERMS = ("--cell", CELL, "--model", "model", "--block-size", str(BLOCK_SIZE))
_PORTS = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


async def until(seen: Callable[[], Awaitable[str | None]]) -> None:
    """Poll until `seen` names no obstacle any more; at the deadline, fail with the last one."""
    deadline_s = time.monotonic() + _SEEN_WITHIN_S
    while (obstacle := await seen()) is not None:
        assert time.monotonic() < deadline_s, obstacle
        await asyncio.sleep(_POLL_S)


async def metric(process: Process, name: str, **labels: str) -> float:
    address = process.address("admin")
    async with aiohttp.ClientSession() as http, http.get(f"http://{address}/metrics") as response:
        return total(parse(await response.text()), name, **labels)


async def reaches(process: Process, name: str, least: float, **labels: str) -> None:
    async def missing() -> str | None:
        value = await metric(process, name, **labels)
        return None if value >= least else f"{process.name}: {name} is {value}, not {least}"

    await until(missing)


async def killed(process: Process) -> None:
    process.kill()

    async def alive() -> str | None:
        return None if process.exit_status is not None else f"{process.name} lives"

    await until(alive)


class Traffic:
    """Requests to one engine, one after the other, until the block ends."""

    def __init__(self, engine: Process, seed: int) -> None:
        self.answered = 0
        self._url = f"http://{engine.address()}/v1/completions"
        self._random = random.Random(seed)

    async def run(self, http: aiohttp.ClientSession) -> None:
        while True:
            await self._ask(http)
            # Not to wait for anything: so that all processes of the cell share the cores.
            await asyncio.sleep(0.005)

    async def more(self, requests: int) -> None:
        """Wait for so many further answers."""
        goal = self.answered + requests

        async def few() -> str | None:
            return None if self.answered >= goal else f"{self.answered} of {goal} answers"

        await until(few)

    async def _ask(self, http: aiohttp.ClientSession) -> None:
        shared = [self._random.randrange(8)] * (4 * BLOCK_SIZE)
        own = [self._random.randrange(100, 400)] * self._random.randrange(8 * BLOCK_SIZE)
        body = {"model": "model", "prompt": shared + own + [1], "max_tokens": 1}
        async with http.post(self._url, json=body) as response:
            assert response.status == 200, await response.text()
        self.answered += 1


@dataclass
class StruckCell:
    """The processes. One that is started again takes its predecessor's place in the lists."""

    supervisor: Supervisor
    log_url: str
    engines: list[Process] = field(default_factory=list[Process])
    publishers: list[Process] = field(default_factory=list[Process])
    indexers: list[Process] = field(default_factory=list[Process])
    _commands: int = 0

    async def start(self, indexer_words: Sequence[Sequence[str]]) -> None:
        """Start all, as many at once as need not know one another."""
        indexers = [self._indexer(words) for words in indexer_words]
        started = await self.supervisor.start([*(self._engine() for _ in WORKERS), *indexers])
        self.engines, self.indexers = started[: len(WORKERS)], started[len(WORKERS) :]
        places = range(len(WORKERS))
        self.publishers = await self.supervisor.start([self._publisher(place) for place in places])

    async def start_publisher(self, place: int) -> Process:
        (process,) = await self.supervisor.start([self._publisher(place)])
        return process

    async def start_indexer(self, *words: str) -> Process:
        """Start one with these words besides the cell's."""
        (process,) = await self.supervisor.start([self._indexer(words)])
        return process

    def _engine(self) -> Command:
        words = ("mock-engine", *_PORTS, "--model", "model", "--block-size", str(BLOCK_SIZE))
        sockets = ("--events", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*")
        return self._command(*words, *sockets, "--blocks", str(_BLOCKS), "--speedup", "inf")

    def _publisher(self, place: int) -> Command:
        engine = self.engines[place]
        return self._command(
            *("publisher", "--engine", "vllm", "--worker-id", str(WORKERS[place]), *_TERMS),
            *("--events", engine.address("events"), "--replay", engine.address("replay")),
            *("--engine-url", f"http://{engine.address()}", "--log", self.log_url, *_PORTS),
            *("--heartbeat-s", str(_HEARTBEAT_S)),
        )

    def _indexer(self, words: Sequence[str]) -> Command:
        lease = ("--lease-ms", str(int(LEASE_S * 1_000)), "--hold-back-ms", "500")
        return self._command("indexer", *_PORTS, *_TERMS, "--log", self.log_url, *lease, *words)

    def _command(self, *words: str) -> Command:
        self._commands += 1
        return kvatlas(f"{words[0]}-{self._commands}", *words)

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[list[Traffic]]:
        """Keep all engines busy; none has a request under way at the end."""
        traffics = [Traffic(engine, seed) for seed, engine in enumerate(self.engines)]
        async with aiohttp.ClientSession() as http:
            tasks = [asyncio.create_task(traffic.run(http)) for traffic in traffics]
            try:
                for traffic in traffics:
                    await traffic.more(60)
                yield traffics
                for traffic in traffics:
                    await traffic.more(60)
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def work(self) -> None:
        """Let all engines answer some requests."""
        async with self.working():
            pass

    async def differs(self, indexer: Process) -> str | None:
        """Say where an index is not what the engines hold, if anywhere."""
        async with grpc.aio.insecure_channel(indexer.address()) as channel:
            stub: stubs.IndexerAsyncStub = stubs.IndexerStub(channel)
            try:
                return await self._differs(indexer.name, stub)
            except grpc.aio.AioRpcError as error:
                return f"{indexer.name}: {error.code().name}"

    async def _differs(self, name: str, stub: "stubs.IndexerAsyncStub") -> str | None:
        status = await stub.GetStatus(rpc.GetStatusRequest())
        live = {
            each.info.worker.worker_id
            for each in status.workers
            if each.info.state == rpc.WORKER_STATE_LIVE
        }
        if live != set(WORKERS):
            return f"{name}: only {sorted(live)} are live"
        held: dict[int, set[int]] = {worker: set() for worker in WORKERS}
        slices = [part.arrow_ipc async for part in stub.Dump(rpc.DumpRequest())]
        for row in rows(iter(slices)):
            held[row.worker_id].update(row.sequence_hashes.tolist())
        for worker, engine in zip(WORKERS, self.engines, strict=True):
            truth = await truth_of(f"http://{engine.address()}")
            assert len(truth.hashes) > _BLOCKS // 2, "the engines have hardly worked"
            lacks, more = truth.hashes - held[worker], held[worker] - truth.hashes
            if lacks or more:
                return f"{name}: worker {worker} lacks {len(lacks)} and has {len(more)} too many"
            for prompt in truth.prompts:
                query = rpc.FindMatchesRequest(sequence_hashes=prompt)
                answer = await stub.FindMatches(query)
                depth = dict(zip(answer.worker_ids, answer.depths, strict=True)).get(worker)
                if depth != len(prompt):
                    return f"{name}: worker {worker} matches {depth} blocks of {len(prompt)}"
        return None

    async def is_whole(self) -> None:
        """Both indexes come to be what the engines hold, and `kvatlas verify` agrees."""
        for indexer in self.indexers:
            await until(lambda indexer=indexer: self.differs(indexer))
        sides = [word for each in self.indexers for word in ("--indexer", each.address())]
        asked = [word for each in self.publishers for word in ("--publisher", each.address())]
        assert await asyncio.to_thread(verify, [*sides, *asked]) == 0


@asynccontextmanager
async def struck_cell(
    log_url: str, logs: Path, *, indexer_words: Sequence[Sequence[str]] = ((), ())
) -> AsyncGenerator[StruckCell]:
    """A cell whose engines have worked, whole before anything strikes it.

    Args:
        log_url: of a log that runs.
        logs: a directory for what the processes say.
        indexer_words: of each indexer, besides the cell's.
    """
    async with Supervisor(logs, grace_s=0.0) as supervisor:
        cell = StruckCell(supervisor, log_url)
        await cell.start(indexer_words)
        await cell.work()
        await cell.is_whole()
        yield cell
