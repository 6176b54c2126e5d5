"""Starts engines, an indexer and all routers, and measures the routers in turn.

Each measurement goes through all routers before the next one begins, so that a machine that slows
down for a while slows all of them. The routers share one core, which the idle ones leave alone;
load, engines and indexer share the others.
"""

import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from kvatlas_loadtest.bench.cell import indexer_command
from kvatlas_loadtest.bench.fake_fleet import announced_workers
from kvatlas_loadtest.bench.frontend import figures, measures
from kvatlas_loadtest.bench.frontend.chats import make_chats
from kvatlas_loadtest.bench.frontend.decide import EVERY_FILTER, decide_us
from kvatlas_loadtest.bench.frontend.figures import (
    BENCH,
    DECIDE_ALL_US_TARGETS,
    DECIDE_US_TARGETS,
    REQUESTS_LONG,
    REQUESTS_SESSION,
    REQUESTS_SHORT,
    Figure,
    Figures,
    Value,
)
from kvatlas_loadtest.bench.frontend.load import LoadGenerator, engines_command
from kvatlas_loadtest.bench.frontend.measures import QUICK, Bench, Size
from kvatlas_loadtest.bench.frontend.routers import (
    KVATLAS,
    ROUTERS,
    Backend,
    NotInstalledError,
    Router,
    start,
    start_several,
)
from kvatlas_loadtest.bench.frontend.several import PROCESSES, cost_of_processes
from kvatlas_loadtest.bench.processes import Cores
from kvatlas_loadtest.bench.rows import Row
from kvatlas_loadtest.supervisor import FleetError, Supervisor

ENGINES = 8


@dataclass(frozen=True, slots=True)
class Options:
    """The benchmark's settings.

    Attributes:
        programs: folders to search for the programs of peers before PATH.
        routers: names of the routers to measure.
        seconds: duration of each load.
    """

    programs: tuple[Path, ...] = ()
    routers: tuple[str, ...] = ROUTERS
    seconds: float = measures.LOAD_S


async def measure(options: Options, *, quick: bool) -> list[Row]:
    """All rows; prints the table that compares the routers."""
    size = QUICK if quick else replace(Size(), seconds=options.seconds)
    cores = Cores.split()
    collected = Figures(short_tokens=size.short_tokens, long_tokens=size.long_tokens)
    with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as name:
        folder = Path(name)
        chats = make_chats(
            folder,
            texts=size.texts,
            short_tokens=size.short_tokens,
            long_tokens=size.long_tokens,
            events=size.events,
        )
        async with Supervisor(folder / "logs") as supervisor:
            interval_ms = measures.CHUNK_INTERVAL_MS
            engines, indexer = await supervisor.start(
                [
                    engines_command(cores, engines=ENGINES, interval_ms=interval_ms, quick=quick),
                    indexer_command("grpc:", cores=cores.others),
                ]
            )
            load = LoadGenerator(supervisor, cores, quick=quick)
            bench = Bench(size, chats, load, engines)
            backend = Backend(
                engines=bench.addresses,
                indexer=indexer.address(),
                tokenizer=chats.tokenizer,
                folder=folder,
                programs=options.programs,
            )
            async with announced_workers(
                indexer.address(),
                engine_urls=[f"http://{address}" for address in bench.addresses],
                prompts=chats.held,
            ):
                routers = await _start_all(options, supervisor, backend, cores, collected)
                await _Turns(bench, routers, collected).measure()
                more = [
                    await _processes(bench, router, supervisor, backend, cores)
                    for router in routers
                    if router.name == KVATLAS
                ]
    Console(width=None if sys.stdout.isatty() else 140).print(collected.table())
    rows = collected.rows() + more
    if KVATLAS in options.routers:
        rows += _decide(size)
    return rows


class _Turns:
    """Measures all routers in turn."""

    def __init__(self, bench: Bench, routers: list[Router], collected: Figures) -> None:
        self._bench = bench
        self._routers = routers
        self._collected = collected
        self._maxima: dict[str, float] = {}

    async def measure(self) -> None:
        """All measurements, in the order of what they leave behind in the routers."""
        bench = self._bench
        await self._each(figures.RSS_IDLE, measures.rss_idle)
        for _ in range(bench.size.repeats):
            await self._each(figures.ADDED_P50_SHORT, lambda router: measures.added(bench, router))
        await self._each(REQUESTS_SHORT, self._requests_short)
        await self._each(REQUESTS_LONG, self._requests_long)
        await self._each(figures.TTFT_P99, self._half_load)
        await self._each(REQUESTS_SESSION, self._requests_session)
        await self._each(figures.CHUNK_CPU, lambda router: measures.chunk_cpu(bench, router))
        await self._each(figures.BURST_TIME, lambda router: measures.burst(bench, router))
        await self._each(figures.BIG_BODY, lambda router: measures.big_body(bench, router))

    async def _each(
        self, figure: Figure, measurement: Callable[[Router], Awaitable[list[Value]]]
    ) -> None:
        """Measure all routers. One that fails is left out, unless it is kvatlas."""
        for router in self._routers:
            try:
                self._collected.add(router.name, await measurement(router))
            except FleetError as error:
                if router.name == KVATLAS:
                    raise
                self._collected.leave_out(router.name, str(error)[:200], figure)

    async def _requests_short(self, router: Router) -> list[Value]:
        return await measures.requests_per_second(
            self._bench, router, REQUESTS_SHORT, self._bench.chats.short
        )

    async def _requests_long(self, router: Router) -> list[Value]:
        values = await measures.requests_per_second(
            self._bench, router, REQUESTS_LONG, self._bench.chats.long
        )
        self._maxima[router.name] = values[0].value
        return values

    async def _half_load(self, router: Router) -> list[Value]:
        if router.name not in self._maxima:
            raise FleetError("its maximum is not known")
        return await measures.half_load(self._bench, router, self._maxima[router.name])

    async def _requests_session(self, router: Router) -> list[Value]:
        if router.name != KVATLAS:
            return []
        return await measures.requests_per_second(
            self._bench, router, REQUESTS_SESSION, self._bench.chats.sessions
        )


async def _start_all(
    options: Options, supervisor: Supervisor, backend: Backend, cores: Cores, collected: Figures
) -> list[Router]:
    """The routers that start. A peer that does not is left out."""
    routers: list[Router] = []
    for name in options.routers:
        try:
            routers.append(await start(name, supervisor, backend, cores))
        except NotInstalledError as error:
            collected.leave_out(name, str(error))
        except FleetError as error:
            if name == KVATLAS:
                raise
            collected.leave_out(name, str(error))
    return routers


async def _processes(
    bench: Bench, one: Router, supervisor: Supervisor, backend: Backend, cores: Cores
) -> Row:
    several = await start_several(supervisor, backend, cores, processes=PROCESSES)
    return await cost_of_processes(bench, one, several)


def _decide(size: Size) -> list[Row]:
    return [
        Row(
            BENCH,
            f"{KVATLAS}: decide, {workers:,} workers",
            decide_us(workers, decisions=size.decisions),
            "us",
            target,
            settings={"policy": "kv-aware"},
        )
        for workers, target in DECIDE_US_TARGETS.items()
    ] + [
        Row(
            BENCH,
            f"{KVATLAS}: decide with 9 filters and 3 scorers, {workers:,} workers",
            decide_us(workers, decisions=size.decisions, policy=EVERY_FILTER),
            "us",
            target,
            settings={"policy": "every-filter"},
        )
        for workers, target in DECIDE_ALL_US_TARGETS.items()
    ]
