"""Starts the processes of a fleet and ends them with it.

A process that survives its demo would disturb the next one, so three mechanisms end it. At the end
of the `async with` block, processes are stopped in reverse order of their start: SIGTERM, then
SIGKILL after a grace period. Each has a session of its own, so that Ctrl-C in a terminal reaches
only its starter, which ends it in order. And the kernel kills it when its starter dies.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class FleetError(Exception):
    """A process did not start, or ended; the message has its name and the end of its log."""


ReadyLine = Callable[[bytes], Mapping[str, Any] | None]
"""Parses a line of stdout: the facts of the ready line; None: it is another line."""


def json_ready_line(line: bytes) -> Mapping[str, Any] | None:
    """The facts of a kvatlas service's ready line."""
    try:
        document: object = json.loads(line)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    facts = cast("dict[str, Any]", document)
    return facts if facts.get("ready") is True else None


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start.

    Attributes:
        name: used for its log and in errors.
        argv: the program and its arguments.
        ready: recognizes its ready line.
        cores: the processor cores that it may use; empty: all.
    """

    name: str
    argv: Sequence[str]
    ready: ReadyLine = json_ready_line
    cores: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Process:
    """A running process.

    Attributes:
        ready: the facts in its ready line.
        log: the file with its stderr.
    """

    name: str
    pid: int
    ready: Mapping[str, Any]
    log: Path
    _handle: asyncio.subprocess.Process

    @property
    def exit_status(self) -> int | None:
        """Its exit status; None: it runs; negative: the signal that ended it."""
        return self._handle.returncode

    def address(self, key: str = "listen") -> str:
        """An address from the ready line.

        Raises:
            FleetError: the line has no such key.
        """
        value = self.ready.get(key)
        if not isinstance(value, str):
            raise FleetError(f"{self.name}: no {key!r} in its ready line")
        return value

    def kill(self) -> None:
        """Send SIGKILL, as an injected fault."""
        with contextlib.suppress(ProcessLookupError):
            self._handle.kill()


def kvatlas(name: str, *words: str, cores: frozenset[int] = frozenset()) -> Command:
    """A `kvatlas` command of this installation."""
    program = "from kvatlas_cli import main; raise SystemExit(main())"
    return Command(name, (sys.executable, "-c", program, *words), cores=cores)


class Supervisor:
    """Owns the processes that it starts; an asynchronous context manager."""

    def __init__(self, logs: Path, *, ready_timeout_s: float = 60.0, grace_s: float = 3.0) -> None:
        self._logs = logs
        self._ready_timeout_s = ready_timeout_s
        self._grace_s = grace_s
        self._batches: list[list[tuple[str, asyncio.subprocess.Process]]] = []
        self._drains: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self, commands: Sequence[Command]) -> list[Process]:
        """Start processes together, and wait until all are ready.

        They are stopped together, before those that were started earlier.

        Raises:
            FleetError: one ended, or was not ready within the timeout. The others run until `stop`.
        """
        batch: list[tuple[str, asyncio.subprocess.Process]] = []
        self._batches.append(batch)
        return await gather_or_cancel([self._start_one(command, batch) for command in commands])

    async def output(self, command: Command, *, timeout_s: float) -> bytes:
        """Run a process to its end and return its stdout.

        Raises:
            FleetError: it failed, or did not end in time.
        """
        batch: list[tuple[str, asyncio.subprocess.Process]] = []
        self._batches.append(batch)
        handle, log = await self._spawn(command)
        batch.append((command.name, handle))
        try:
            async with asyncio.timeout(timeout_s):
                printed, _ = await handle.communicate()
        except TimeoutError:
            raise FleetError(f"{command.name} did not end within {timeout_s:.0f} s") from None
        if handle.returncode != 0:
            end = printed.decode(errors="replace").strip()[-300:]
            raise FleetError(
                f"{command.name} ended with status {handle.returncode} {end}" + _log_tail(log)
            )
        batch.clear()
        return printed

    async def _spawn(self, command: Command) -> tuple[asyncio.subprocess.Process, Path]:
        log = self._logs / f"{command.name}.log"
        with log.open("ab") as stderr:
            handle = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=_before_program(os.getpid(), command.cores),
            )
        return handle, log

    async def _start_one(
        self, command: Command, batch: list[tuple[str, asyncio.subprocess.Process]]
    ) -> Process:
        handle, log = await self._spawn(command)
        batch.append((command.name, handle))
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                ready = await _ready_line(handle, command.ready)
        except TimeoutError:
            raise FleetError(
                f"{command.name} was not ready within {self._ready_timeout_s:.0f} s"
                + _log_tail(log)
            ) from None
        if ready is None:
            status = await handle.wait()
            raise FleetError(
                f"{command.name} ended with status {status} before it was ready" + _log_tail(log)
            )
        self._drains.append(asyncio.create_task(_drain(handle)))
        return Process(command.name, handle.pid, ready, log, handle)

    def ended(self) -> list[str]:
        """Names of the processes that have ended unexpectedly."""
        return [
            name
            for batch in self._batches
            for name, handle in batch
            if handle.returncode is not None
        ]

    async def stop(self) -> None:
        """Stop all processes, the last batch first. May be called again."""
        while self._batches:
            batch = self._batches[-1]
            await asyncio.gather(*(self._end(handle) for _, handle in batch))
            self._batches.pop()
        await asyncio.gather(*self._drains)
        self._drains.clear()

    async def _end(self, handle: asyncio.subprocess.Process) -> None:
        if handle.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            handle.terminate()
        try:
            async with asyncio.timeout(self._grace_s):
                await handle.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                handle.kill()
            await handle.wait()  # without a limit: nothing survives this signal


async def gather_or_cancel(work: Sequence[Awaitable[T]]) -> list[T]:
    """All results; when one fails the others are cancelled, and the first failure is raised."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ready_line(
    handle: asyncio.subprocess.Process, ready: ReadyLine
) -> Mapping[str, Any] | None:
    """Return the facts of the first ready line; None: stdout ended without one."""
    assert handle.stdout is not None  # noqa: S101 - it was asked for as a pipe
    while line := await handle.stdout.readline():
        facts = ready(line)
        if facts is not None:
            return facts
    return None


async def _drain(handle: asyncio.subprocess.Process) -> None:
    """Read on, so that a talkative process never blocks on a full pipe."""
    assert handle.stdout is not None  # noqa: S101 - it was asked for as a pipe
    while await handle.stdout.read(65_536):
        pass


def _log_tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else f" (it wrote nothing to {log})"


def _before_program(parent: int, cores: frozenset[int]) -> Callable[[], None]:
    """Runs in the child before its program: be killed when `parent` dies, even if it just did."""

    def request() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        if cores:
            os.sched_setaffinity(0, cores)

    return request
