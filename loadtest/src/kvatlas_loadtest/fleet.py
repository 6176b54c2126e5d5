"""One whole cell on loopback: a log, engines with a publisher each, indexers, frontends.

Everything is a process of its own, started as a user would start it, on ports that the system
picks. A fleet starts empty and is not used twice: what one policy left in caches and index must not
help the next.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from kvatlas_events.embedded import EmbeddedServerError, EmbeddedValkey
from kvatlas_loadtest.codec import replica
from kvatlas_loadtest.prometheus import Sample, parse, total
from kvatlas_loadtest.supervisor import Command, FleetError, Process, Supervisor, kvatlas

CELL = "demo"
_ANY = "127.0.0.1:0"
_SETTLE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class FleetShape:
    """What to start.

    Attributes:
        blocks: an engine's cache, in blocks.
        prefill_token_us: what a real engine takes for a token that is not cached.
        engine_speedup: how much faster than that a mock engine computes.
        policy: a frontend's policy, by name or file.
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
    """Processes that are up, ready, and know one another."""

    shape: FleetShape
    supervisor: Supervisor
    engines: Sequence[Process]
    indexers: Sequence[Process]
    frontends: Sequence[Process]

    async def engine_metrics(self) -> list[Sample]:
        """What all engines say of themselves."""
        return await _metrics([engine.address() for engine in self.engines])

    async def frontend_metrics(self) -> list[Sample]:
        """What all frontends say of themselves."""
        return await _metrics([frontend.address("admin") for frontend in self.frontends])


@asynccontextmanager
async def running_fleet(shape: FleetShape, logs: Path) -> AsyncGenerator[Fleet]:
    """A fleet, for as long as the context lasts; no process of it lasts longer.

    Raises:
        FleetError: something did not start.
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
        await _wait_until_whole(fleet)
        yield fleet


@asynccontextmanager
async def _embedded_log() -> AsyncGenerator[str]:
    """The URL of a Valkey of our own, which ends after everything that uses it."""
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


async def _wait_until_whole(fleet: Fleet) -> None:
    """Every indexer matches every engine, and every frontend knows them all.

    Raises:
        FleetError: that did not come about in time.
    """
    missing = ""
    try:
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            while missing := await _missing(fleet):  # noqa: ASYNC110 - other processes' state
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise FleetError(f"the fleet did not come together: {missing}") from None


async def _missing(fleet: Fleet) -> str:
    wanted = fleet.shape.engines
    for indexer in fleet.indexers:
        async with replica(indexer.address()) as connection:
            status = await connection.status()
        live = sum(worker.state == "LIVE" for worker in status.workers.values())
        if not status.ready or live != wanted:
            return f"{indexer.name} matches {live} of {wanted} workers"
    for frontend in fleet.frontends:
        live = await _live_workers(frontend)
        if live != wanted:
            return f"{frontend.name} knows {live} of {wanted} workers"
    return ""


async def frontend_knows(frontend: Process, workers: int) -> None:
    """Wait until a frontend can route to that many workers.

    Raises:
        FleetError: it does not come to know them.
    """
    try:
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            while await _live_workers(frontend) != workers:  # noqa: ASYNC110 - another process's
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise FleetError(f"{frontend.name} does not know the {workers} workers") from None


async def _live_workers(frontend: Process) -> int:
    samples = await _metrics([frontend.address("admin")])
    return int(total(samples, "kvatlas_frontend_workers", state="live"))


async def _metrics(addresses: Sequence[str]) -> list[Sample]:
    samples: list[Sample] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        for address in addresses:
            async with session.get(f"http://{address}/metrics") as response:
                response.raise_for_status()
                samples += parse(await response.text())
    return samples
