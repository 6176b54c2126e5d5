"""What the frontend adds: whole path against the engine alone, in the same run.

Eight engines that answer at once, a real indexer that knows some of the prompts, one frontend on a
core of its own. Requests go in turn straight to an engine and through the frontend, so that
whatever else the machine does slows both.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median

import uvloop

from kvatlas_hashing import chunk_hashes, sequence_hashes
from kvatlas_loadtest.bench.fake_fleet import announced_workers
from kvatlas_loadtest.bench.http import Answer, Connection, post
from kvatlas_loadtest.bench.processes import Cores, cpu_s
from kvatlas_loadtest.bench.rows import Row, Setting
from kvatlas_loadtest.bench.texts import Text, deepseek_folder, make_texts
from kvatlas_loadtest.fleet import frontend_knows
from kvatlas_loadtest.supervisor import Command, FleetError, Process, Supervisor, kvatlas

MODEL = "bench"
CELL = "bench"
BLOCK_SIZE = 16
ENGINES = 8
CHUNK_INTERVAL_MS = 5.0
ADDED_MS_TARGET = 1.5
REQUESTS_S_TARGET = 800.0
CHUNK_US_TARGET = 30.0
_PATH = "/v1/completions"
_ANY = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    texts: int
    tokens: int
    rounds: int
    warm_up: int
    load_s: float
    connections: int
    streams: int
    chunks: int


REAL = Size(
    texts=64,
    tokens=8_000,
    rounds=600,
    warm_up=50,
    load_s=4.0,
    connections=16,
    streams=32,
    chunks=200,
)
QUICK = Size(
    texts=8, tokens=500, rounds=16, warm_up=8, load_s=0.2, connections=4, streams=4, chunks=10
)


@dataclass(frozen=True, slots=True)
class _Setup:
    size: Size
    frontend: Process
    engines: Sequence[str]
    texts: Sequence[Text]

    @property
    def settings(self) -> dict[str, Setting]:
        return {"prompt_tokens": self.size.tokens, "engines": ENGINES, "block_size": BLOCK_SIZE}


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Milliseconds the frontend adds to a first event, requests a second, CPU per chunk."""
    return uvloop.run(_measure(QUICK if quick else REAL))


async def _measure(size: Size) -> list[Row]:
    cores = Cores.split()
    folder = deepseek_folder()
    texts = make_texts(folder, texts=size.texts, tokens=size.tokens, seed=1)
    with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as logs:
        async with Supervisor(Path(logs)) as supervisor:
            engines, indexer = await supervisor.start([_engines(cores), _indexer(cores)])
            addresses = engines.address().split()
            async with announced_workers(
                indexer.address(),
                cell=CELL,
                model=MODEL,
                block_size=BLOCK_SIZE,
                engine_urls=[f"http://{address}" for address in addresses],
                prompts=[
                    sequence_hashes(chunk_hashes(text.tokens, BLOCK_SIZE)) for text in texts[::2]
                ],
            ):
                (frontend,) = await supervisor.start([_frontend(indexer, folder, cores)])
                await frontend_knows(frontend, ENGINES)
                setup = _Setup(size, frontend, addresses, texts)
                return [await _added(setup), *await _load(setup), await _chunks(setup)]


def _engines(cores: Cores) -> Command:
    module = "kvatlas_loadtest.bench.instant_engines"
    interval = ("--interval-ms", str(CHUNK_INTERVAL_MS))
    words = ("--model", MODEL, "--engines", str(ENGINES), *interval)
    return Command("engines", (sys.executable, "-m", module, *words), cores=cores.others)


def _indexer(cores: Cores) -> Command:
    return kvatlas(
        "indexer",
        "indexer",
        *("--listen", _ANY, "--admin", _ANY, "--log", "grpc:", "--cell", CELL),
        *("--model", MODEL, "--block-size", str(BLOCK_SIZE)),
        cores=cores.others,
    )


def _frontend(indexer: Process, tokenizer: Path, cores: Cores) -> Command:
    return kvatlas(
        "frontend",
        "frontend",
        *("--listen", _ANY, "--admin", _ANY, "--indexer", indexer.address()),
        *("--model", MODEL, "--block-size", str(BLOCK_SIZE)),
        *("--tokenizer", str(tokenizer), "--policy", "kv-aware"),
        cores=cores.measured,
    )


def _request(text: str, *, max_tokens: int) -> bytes:
    body = {"model": MODEL, "prompt": text, "stream": True, "max_tokens": max_tokens}
    return post(_PATH, json.dumps(body).encode())


async def _added(setup: _Setup) -> Row:
    """p50 of the first event through the frontend, less p50 straight to an engine."""
    requests = cycle([_request(text.text, max_tokens=1) for text in setup.texts])
    through = await Connection.open(setup.frontend.address())
    straight = cycle([await Connection.open(address) for address in setup.engines])
    for _ in range(setup.size.warm_up):
        _check(await through.send(next(requests)))
    depths: list[int] = []
    routed_s: list[float] = []
    direct_s: list[float] = []
    for _ in range(setup.size.rounds):
        request = next(requests)
        answer = await through.send(request)
        depths.append(_check(answer))
        routed_s.append(answer.first_event_s)
        direct_s.append((await next(straight).send(request)).first_event_s)
    through.close()
    if not any(depths):
        raise FleetError("kvatlas bench: the frontend found no match for prompts that are held")
    return Row(
        "frontend",
        "added to the first event, p50, one connection",
        (median(routed_s) - median(direct_s)) * 1_000,
        "ms",
        ADDED_MS_TARGET,
        settings=setup.settings
        | {"requests": len(routed_s), "direct_p50_ms": round(median(direct_s) * 1_000, 3)},
    )


def _check(answer: Answer) -> int:
    """The depth of a routed answer, which must not have been routed without matches."""
    reason = answer.header("x-kvatlas-reason")
    if not reason or reason.startswith("fallback"):
        raise FleetError(f"kvatlas bench: the frontend routed by {reason or 'no reason'!r}")
    return int(answer.header("x-kvatlas-depth") or "0")


async def _load(setup: _Setup) -> list[Row]:
    """Requests a second over several connections, closed loop."""
    requests = [_request(text.text, max_tokens=1) for text in setup.texts]
    connections = [
        await Connection.open(setup.frontend.address()) for _ in range(setup.size.connections)
    ]
    start, cpu_start = time.perf_counter(), cpu_s(setup.frontend)
    end = start + setup.size.load_s

    async def loop(connection: Connection, first: int) -> int:
        done = 0
        while time.perf_counter() < end:
            await connection.send(requests[(first + done) % len(requests)])
            done += 1
        return done

    done = sum(await asyncio.gather(*(loop(c, i * 5) for i, c in enumerate(connections))))
    elapsed_s, used_s = time.perf_counter() - start, cpu_s(setup.frontend) - cpu_start
    for connection in connections:
        connection.close()
    settings = setup.settings | {"connections": len(connections)}
    return [
        Row(
            "frontend",
            "requests a second, one core",
            done / elapsed_s,
            "1/s",
            REQUESTS_S_TARGET,
            "higher",
            settings | {"frontend_cpu": f"{used_s / elapsed_s:.0%}"},
        ),
        Row("frontend", "CPU a request", used_s / done * 1e6, "us", settings=settings),
    ]


async def _chunks(setup: _Setup) -> Row:
    """CPU of long answers less CPU of as many short ones, over the chunks between them."""
    size = setup.size
    cpu: dict[int, float] = {}
    connections = [await Connection.open(setup.frontend.address()) for _ in range(size.streams)]
    for events in (1, 1, size.chunks):
        request = _request(f"a prompt for {events} chunks", max_tokens=events)
        before = cpu_s(setup.frontend)
        await asyncio.gather(*(connection.send(request) for connection in connections))
        cpu[events] = cpu_s(setup.frontend) - before
    for connection in connections:
        connection.close()
    chunks = size.streams * (size.chunks - 1)
    return Row(
        "frontend",
        "CPU a streamed chunk",
        (cpu[size.chunks] - cpu[1]) / chunks * 1e6,
        "us",
        CHUNK_US_TARGET,
        settings={
            "streams": size.streams,
            "chunks": size.chunks,
            "interval_ms": CHUNK_INTERVAL_MS,
        },
    )
