"""Calls the native half of the benchmark: the index subcommands of `kvatlas-loadgen`."""

import json
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvatlas_chassis import FatalError


@dataclass(frozen=True, slots=True)
class Design:
    """One design that the generator can play a stream on.

    Attributes:
        exact: its answers are never wrong. False: the published design allows wrong answers.
        queued: it applies writes on its own threads.
    """

    name: str
    exact: bool
    queued: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """One play of a stream.

    Attributes:
        window_ms: time into which the stream was compressed; 0: played without pacing.
        finished_ms: time until all was applied.
        counted: all was issued within 1.01 times the window and applied within 1.10 times.
        block_ops_per_s: blocks queried, stored and removed, divided by `finished_ms`.
        lookup_us: p50, p99, p999 and max of a look-up.
        apply_ms: p50 and p99 from an event's time until it was applied, and even_p99, the p99 if
            every block took the average time (paced, one applying thread). None: the design
            applies on its own threads.
        write_ns: processor time of the event thread, per block stored or removed. None: no block.
    """

    window_ms: float
    issued_ms: float
    finished_ms: float
    counted: bool
    block_ops: int
    block_ops_per_s: float
    lookup_us: dict[str, float]
    apply_ms: dict[str, float] | None
    bytes_per_membership: float
    memberships: int
    write_ns: float | None


class Program:
    """The generator. Each call is a process of its own, so that no trial inherits a heap."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def designs(self) -> tuple[Design, ...]:
        """All designs."""
        names = [field.name for field in fields(Design)]
        listed = json.loads(self._run("index-designs"))
        return tuple(Design(**{name: each[name] for name in names}) for each in listed)

    def make_stream(self, trace: Path, out: Path, *flags: str) -> None:
        """Make an operation stream from a trace."""
        self._run("index-stream", "--trace", str(trace), "--out", str(out), *flags)

    def play(
        self, stream: Path, design: str, window_ms: int, *flags: str, timeout_s: float
    ) -> Trial | None:
        """Play one trial; None: it did not end in time.

        Args:
            stream: the stream to play.
            design: the design to play it on.
            window_ms: time into which it is compressed; 0: no pacing.
            flags: further flags of `index-play`.
            timeout_s: longest time of the process.
        """
        words = ("--stream", str(stream), "--design", design, "--window-ms", str(window_ms))
        try:
            printed = self._run("index-play", *words, *flags, timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return read_trial(json.loads(printed))

    def single_calls(self, *flags: str) -> list[dict[str, Any]]:
        """Figures of single calls, as printed."""
        lines = self._run("index-micro", *flags).splitlines()
        return [json.loads(line) for line in lines if line.strip()]

    def _run(self, verb: str, *words: str, timeout_s: float | None = None) -> str:
        command = [str(self._path), verb, *words]
        done = subprocess.run(  # noqa: S603 - our own program
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise FatalError(f"kvatlas bench: {self._path.name} {verb}: {lines[-1]}")
        return done.stdout


def read_trial(document: dict[str, Any]) -> Trial:
    """Parse the output of `index-play`."""
    values = {field.name: document[field.name] for field in fields(Trial)}
    apply_ms = {name: value for name, value in values["apply_ms"].items() if value is not None}
    values["apply_ms"] = apply_ms or None
    return Trial(**values)
