"""Runs the native load generator, and the native engines behind the routers.

A client or an engine in Python would be slower than the routers under test.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvatlas_loadtest.bench.cell import MODEL
from kvatlas_loadtest.bench.loadgen import find_program
from kvatlas_loadtest.bench.processes import Cores
from kvatlas_loadtest.supervisor import Command, FleetError, Supervisor

REASON_HEADER = "x-kvatlas-reason"


@dataclass(frozen=True, slots=True)
class Times:
    """Quantiles, in milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Result:
    """The measurements of a load.

    Attributes:
        first_event: from sending a request, or from when it was due, to its answer's first event.
        direct: the same, straight to an engine.
        last_byte: the same as `first_event`, to the answer's end.
        cpu_s: processor time of the load generator.
        reasons: number of answers by the value of `x-kvatlas-reason`.
    """

    requests: int
    seconds: float
    first_event: Times
    direct: Times
    last_byte: Times
    events: int
    errors: int
    first_error: str
    cpu_s: float
    reasons: Mapping[str, int]


def engines_command(cores: Cores, *, engines: int, interval_ms: float, quick: bool) -> Command:
    """Engines that answer at once, and stream an event each `interval_ms`."""
    flags = ("--engines", str(engines), "--interval-ms", str(interval_ms), "--model", MODEL)
    return Command(
        "engines", (str(find_program(quick=quick)), "http-engines", *flags), cores=cores.others
    )


class LoadGenerator:
    """Runs loads, each as a process of its own on the core that the routers do not use."""

    def __init__(self, supervisor: Supervisor, cores: Cores, *, quick: bool) -> None:
        self._supervisor = supervisor
        self._cores = cores
        self._program = find_program(quick=quick)
        self._runs = 0

    async def run(
        self,
        pattern: str,
        target: str,
        requests: Path,
        *flags: str | float,
        is_checked: bool = True,
    ) -> Result:
        """Run one load.

        Args:
            pattern: `closed`, `open`, `turns` or `burst`.
            target: address to load.
            requests: file of bodies.
            flags: flags of the pattern.
            is_checked: whether a failed request is an error.

        Raises:
            FleetError: nothing was answered, or a request failed and that is an error.
        """
        self._runs += 1
        words = ("--pattern", pattern, "--target", target, "--requests", str(requests))
        command = Command(
            f"load-{self._runs}",
            (
                *(str(self._program), "http-load", *words, "--count-header", REASON_HEADER),
                *(str(flag) for flag in flags),
            ),
            cores=self._cores.others,
        )
        output = await self._supervisor.output(command, timeout_s=120)
        result = _result(json.loads(output))
        if is_checked and result.errors:
            raise FleetError(f"{result.errors} requests failed: {result.first_error}")
        return result


def _result(document: Mapping[str, Any]) -> Result:
    return Result(
        requests=document["requests"],
        seconds=document["seconds"],
        first_event=_times(document["first_event_us"]),
        direct=_times(document["direct_first_event_us"]),
        last_byte=_times(document["last_byte_us"]),
        events=document["events"],
        errors=document["errors"],
        first_error=document["first_error"] or "",
        cpu_s=document["cpu_s"],
        reasons=document["header"],
    )


def _times(document: Mapping[str, float]) -> Times:
    return Times(*(document[name] / 1e3 for name in ("p50", "p99", "max")))
