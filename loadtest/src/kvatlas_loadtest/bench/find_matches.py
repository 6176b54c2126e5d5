"""FindMatches over gRPC on loopback: an indexer on a core of its own, a native load generator.

A Python client would be slower than the server. The generator (`loadtest/rust`) fills the indexer
as publishers do and checks every answer; a wrong one is an error that ends the run.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from kvatlas_loadtest.bench.cell import TERMS, indexer_command
from kvatlas_loadtest.bench.loadgen import find_program
from kvatlas_loadtest.bench.processes import Cores, cpu_s
from kvatlas_loadtest.bench.rows import Medians, Row
from kvatlas_loadtest.supervisor import Command, Process, Supervisor

FLEETS = (64, 256)
BLOCKS = 10_000
DEPTH = 256
CALLS_S_TARGET = 35_000.0
P50_US_TARGET = 110.0
_ROUNDS = 3
_SECONDS = 3
_CONNECTIONS = 4
_CONCURRENCY = 8


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """FindMatches: calls per second on one core, and latency on one connection."""
    program = find_program(quick=quick)
    return uvloop.run(_measure(program, quick=quick))


async def _measure(program: Path, *, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for workers in (2,) if quick else FLEETS:
        with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as logs:
            async with Supervisor(Path(logs), ready_timeout_s=60) as supervisor:
                bench = _Bench(supervisor, program, Cores.split(), workers, quick=quick)
                rows += await bench.rows()
    return rows


class _Bench:
    """One indexer with one fleet in it."""

    def __init__(
        self, supervisor: Supervisor, program: Path, cores: Cores, workers: int, *, quick: bool
    ) -> None:
        self._supervisor = supervisor
        self._program = program
        self._cores = cores
        self._workers = workers
        self._rounds = 1 if quick else _ROUNDS
        self._warm_up = 10 if quick else 2_000
        self._quick = quick

    async def rows(self) -> list[Row]:
        """Fill the indexer, then measure many callers and one caller in turn."""
        (indexer,) = await self._supervisor.start(
            [indexer_command("grpc:", cores=self._cores.measured)]
        )
        await self._supervisor.start([self._command("fill", indexer, "--seconds", "600")])
        figures = Medians()
        for _ in range(self._rounds):
            used_s = cpu_s(indexer)
            many = await self._calls(indexer, _CONNECTIONS, _CONCURRENCY)
            figures.add("cpu_us", (cpu_s(indexer) - used_s) / (many["calls"] + self._warm_up) * 1e6)
            figures.add("calls_s", many["calls_per_s"])
            one = await self._calls(indexer, 1, 1)
            figures.add("p50_us", one["p50_us"])
            figures.add("p99_us", one["p99_us"])
        return self._table(figures)

    def _command(self, verb: str, indexer: Process, *words: str) -> Command:
        fleet = ("--workers", str(self._workers), "--blocks", str(BLOCKS), "--depth", str(DEPTH))
        return Command(
            f"loadgen-{verb}",
            (str(self._program), verb, "--address", indexer.address(), *TERMS, *fleet, *words),
            ready=_filled,
            cores=self._cores.others,
        )

    async def _calls(self, indexer: Process, connections: int, concurrency: int) -> dict[str, Any]:
        bound = ("--calls", "200") if self._quick else ()
        command = self._command(
            "find-matches",
            indexer,
            *("--fill", "no", "--seconds", str(_SECONDS), *bound),
            *("--warmup", str(self._warm_up)),
            *("--connections", str(connections), "--concurrency", str(concurrency)),
        )
        return json.loads(await self._supervisor.output(command, timeout_s=60 + _SECONDS))

    def _table(self, figures: Medians) -> list[Row]:
        fleet = {"workers": self._workers, "blocks": BLOCKS, "query_blocks": DEPTH}
        many = fleet | {"connections": _CONNECTIONS, "in_flight": _CONNECTIONS * _CONCURRENCY}
        one = fleet | {"connections": 1, "in_flight": 1}
        name = "find-matches"
        return [
            Row(
                name,
                "calls a second, one core",
                figures["calls_s"],
                "1/s",
                CALLS_S_TARGET,
                "higher",
                many,
            ),
            Row(name, "server CPU a call", figures["cpu_us"], "us", settings=many),
            Row(name, "p50, one connection", figures["p50_us"], "us", P50_US_TARGET, settings=one),
            Row(name, "p99, one connection", figures["p99_us"], "us", settings=one),
        ]


def _filled(line: bytes) -> dict[str, Any] | None:
    """Recognize the generator's line that reports that the index is filled."""
    return {} if b'"filled": true' in line else None
