"""A complete cell on loopback: a log, engines with a publisher each, indexers, frontends.

Each is a process of its own, started as a user would start it, on ports that the system picks. A
fleet starts empty and serves one policy: contents of caches and index must not help the next one.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prometheus_client.samples import Sample

from kvatlas_loadtest.indexer_rpc import replica
from kvatlas_loadtest.prometheus import parse, total
from kvatlas_loadtest.supervisor import Command, FleetError, Process, Supervisor, kvatlas
from kvatlas_testing.child_process import EmbeddedServerError
from kvatlas_testing.valkey import EmbeddedValkey

CELL = "demo"
_ANY = "127.0.0.1:0"
_SETTLE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The processes to start.

    Attributes:
        blocks: size of an engine's cache, in blocks.
        prefill_token_us: time that a real engine takes for an uncached token.
        engine_speedup: factor by which a mock engine is faster than that.
        policy: the frontends' policy, by name or file.
    """

    model: str
    block_size: int
    engines: int
    blocks: int
    prefill_token_us: float
    engine_speedup: float
    indexers: int
    frontends: int
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running fleet whose processes are ready and know one another."""

    shape: FleetShape
    supervisor: Supervisor
    engines: Sequence[Process]
    indexers: Sequence[Process]
    frontends: Sequence[Process]

    async def engine_metrics(self) -> list[Sample]:
        """The samples of all engines' metrics pages."""
        return await read_metrics([engine.address() for engine in self.engines])

    async def frontend_metrics(self) -> list[Sample]:
        """The samples of all frontends' metrics pages."""
        return await read_metrics([frontend.address("admin") for frontend in self.frontends])


@asynccontextmanager
async def running_fleet(shape: FleetShape, logs: Path) -> AsyncGenerator[Fleet]:
    """A fleet for as long as the context lasts; none of its processes lives longer.

    Raises:
        FleetError: a process did not start.
    """
    async with _embedded_log() as log_url, Supervisor(logs) as supervisor:
        cell = ("--cell", CELL, "--model", shape.model, "--block-size", str(shape.block_size))
        first = await supervisor.start(
            [
                *(
                    kvatlas(
                        f"indexer-{i}",
                        "indexer",
                        *("--listen", _ANY, "--admin", _ANY, "--log", log_url, *cell),
                    )
                    for i in range(shape.indexers)
                ),
                *(_engine(i, shape) for i in range(shape.engines)),
            ]
        )
        indexers, engines = first[: shape.indexers], first[shape.indexers :]
        second = await supervisor.start(
            [
                *(
                    kvatlas(
                        f"publisher-{i}",
                        "publisher",
                        *("--engine", "vllm", "--events", engine.address("events")),
                        *("--replay", engine.address("replay")),
                        *("--engine-url", f"http://{engine.address()}"),
                        *("--worker-id", str(i), "--log", log_url, *cell),
                        *("--listen", _ANY, "--admin", _ANY),
                    )
                    for i, engine in enumerate(engines)
                ),
                *(
                    kvatlas(
                        f"frontend-{i}",
                        "frontend",
                        *("--listen", _ANY, "--admin", _ANY),
                        *("--indexer", *(indexer.address() for indexer in indexers)),
                        *("--model", shape.model, "--block-size", str(shape.block_size)),
                        *("--tokenizer", "engine", "--policy", shape.policy),
                    )
                    for i in range(shape.frontends)
                ),
            ]
        )
        fleet = Fleet(shape, supervisor, engines, indexers, second[shape.engines :])
        await _complete(lambda: _missing(fleet))
        yield fleet


@asynccontextmanager
async def _embedded_log() -> AsyncGenerator[str]:
    """The URL of an embedded Valkey, which is stopped after the processes that use it."""
    try:
        async with EmbeddedValkey() as server:
            yield server.url
    except EmbeddedServerError as error:
        raise FleetError(str(error)) from None


def _engine(number: int, shape: FleetShape) -> Command:
    return kvatlas(
        f"engine-{number}",
        "mock-engine",
        *("--listen", _ANY, "--events", f"tcp://{_ANY}", "--replay", f"tcp://{_ANY}"),
        *("--model", shape.model, "--block-size", str(shape.block_size)),
        *("--blocks", str(shape.blocks), "--speedup", f"{shape.engine_speedup:.6g}"),
        *("--prefill-token-us", f"{shape.prefill_token_us:.6g}"),
        *("--hash-seed", f"{shape.seed}-{number}"),
    )


async def _missing(fleet: Fleet) -> str:
    """Return which replica or frontend does not know all engines yet; empty: none."""
    wanted = fleet.shape.engines
    for indexer in fleet.indexers:
        async with replica(indexer.address()) as connection:
            status = await connection.status()
        live = sum(worker.state == "LIVE" for worker in status.workers.values())
        if not status.ready or live != wanted:
            return f"{indexer.name} matches {live} of {wanted} workers"
    for frontend in fleet.frontends:
        if missing := await _missing_at(frontend, wanted):
            return missing
    return ""


async def frontend_knows(frontend: Process, workers: int) -> None:
    """Wait until a frontend, with all of its processes, can route to that many workers.

    Raises:
        FleetError: it does not know them in time.
    """
    await _complete(lambda: _missing_at(frontend, workers))


async def _complete(missing: Callable[[], Awaitable[str]]) -> None:
    """Poll until nothing is missing.

    Raises:
        FleetError: something was missing for too long.
    """
    last = ""
    try:
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            while last := await missing():  # noqa: ASYNC110 - other processes' state
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise FleetError(f"the fleet did not come together: {last}") from None


async def _missing_at(frontend: Process, wanted: int) -> str:
    pages = await _admin_pages(frontend)
    live = int(total(await read_metrics(pages), "kvatlas_frontend_workers", state="live"))
    wanted *= len(pages)
    return "" if live == wanted else f"{frontend.name} knows {live} of {wanted} workers"


async def _admin_pages(frontend: Process) -> list[str]:
    """The admin address of each of a frontend's processes; the supervisor's has the sum of all."""
    admin = frontend.address("admin")
    if "processes" not in frontend.ready:
        return [admin]
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
        session.get(f"http://{admin}/processes") as response,
    ):
        return [process["admin"] for process in await response.json()]


async def read_metrics(addresses: Sequence[str]) -> list[Sample]:
    """The samples of all these metrics pages."""
    samples: list[Sample] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        for address in addresses:
            async with session.get(f"http://{address}/metrics") as response:
                response.raise_for_status()
                samples += parse(await response.text())
    return samples
