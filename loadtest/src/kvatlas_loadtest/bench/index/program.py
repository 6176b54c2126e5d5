"""The native half of the benchmark as functions: `kvatlas-loadgen`'s subcommands for the index."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvatlas_chassis import FatalError


@dataclass(frozen=True, slots=True)
class Design:
    """One design that the generator can play a stream on.

    Attributes:
        exact: its answers are never wrong; if not, it is a form that was published as such.
        queued: its writes go to threads of its own.
    """

    name: str
    exact: bool
    queued: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """One play of a stream.

    Attributes:
        window_ms: what the stream was squeezed into; 0: played as fast as it went.
        finished_ms: until all was applied.
        counted: all was issued within 1.01 times the window and applied within 1.10 times.
        block_ops_per_s: blocks asked for, stored and removed, by `finished_ms`.
        lookup_us: p50, p99, p999 and max of a look-up.
        apply_ms: p50 and p99 from an event's time until it was applied, and even_p99, the p99 if
            every block took the average time (paced, one applying thread); None where the design
            applies on threads of its own.
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
    """The generator. Each call is a process of its own, so that no trial inherits another's heap."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def designs(self) -> tuple[Design, ...]:
        """Every design there is."""
        listed = json.loads(self._run("index-designs"))
        return tuple(
            Design(design["name"], exact=design["exact"], queued=design["queued"])
            for design in listed
        )

    def make_stream(self, trace: Path, out: Path, *flags: str) -> None:
        """Make an operation stream of a trace."""
        self._run("index-stream", "--trace", str(trace), "--out", str(out), *flags)

    def play(
        self, stream: Path, design: str, window_ms: int, *flags: str, timeout_s: float
    ) -> Trial | None:
        """One trial; None if it was not over in time.

        Args:
            stream: what is played.
            design: on what.
            window_ms: squeezed into what; 0: as fast as it goes.
            flags: others of `index-play`.
            timeout_s: for the whole process.
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
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise FatalError(f"kvatlas bench: {self._path.name} {verb}: {said[-1]}")
        return done.stdout


def read_trial(document: dict[str, Any]) -> Trial:
    """What `index-play` printed."""
    apply_ms: dict[str, float | None] = document["apply_ms"]
    known_ms = {name: value for name, value in apply_ms.items() if value is not None}
    return Trial(
        window_ms=document["window_ms"],
        issued_ms=document["issued_ms"],
        finished_ms=document["finished_ms"],
        counted=document["counted"],
        block_ops=document["block_ops"],
        block_ops_per_s=document["block_ops_per_s"],
        lookup_us=document["lookup_us"],
        apply_ms=known_ms or None,
        bytes_per_membership=document["bytes_per_membership"],
        memberships=document["memberships"],
        write_ns=document["write_ns"],
    )
