"""A server process on loopback that ends with the process that started it.

On Linux the kernel ends it even if the starter is killed. The kernel watches the thread that calls
`start`, so that thread must live as long as the server.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

# Runs between fork and exec: the process asks for its own kill and then becomes the server.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedServerError(Exception):
    """The server's program is missing, or the server does not start; the message says why."""


class ChildProcess:
    """At most one running process; it can be started again after it ended.

    Args:
        stop_s: time to end after SIGTERM, in seconds, before SIGKILL.
    """

    def __init__(self, *, stop_s: float) -> None:
        self._stop_s = stop_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None unless it was started and not stopped since."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """True if it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self, command: Sequence[str], *, output: Path) -> None:
        """Start `command`, whose first word is a path; stdout and stderr go to the file `output`."""
        guard: list[str] = []
        if sys.platform == "linux":
            guard = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
        with output.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                [*guard, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        """End the process by SIGTERM, if it runs, and by SIGKILL if that takes too long."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._stop_s)
        self.kill()

    def kill(self) -> None:
        """End the process by SIGKILL, if it runs, as a crash would."""
        if self._process is not None:
            self._process.kill()  # does nothing to a process that has ended
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def paused(pid: int) -> Generator[None]:
    """Stop a child process for the time of the block, as on a machine that stalls.

    All of its threads stand still when the block begins. The signal alone does not say so: on a
    busy machine the others run on until the first of them gets a core.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def free_port() -> int:
    """Return a loopback port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_lines(text: str) -> str:
    """Return the last lines of a log as one line, for an error message."""
    return " | ".join(text.strip().splitlines()[-3:]) or "it wrote nothing"
