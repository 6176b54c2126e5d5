"""A process of the frontend. The supervisor starts it, and gives it its descriptors.

It is the frontend of one process, less the ready line. It ends when it is told to, on SIGTERM, and
when the supervisor ends in any way.
"""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import uvloop

from kvatlas_chassis import FatalError, HostPort, StopSignal, TaskSet, setup_logging
from kvatlas_frontend.assembly import Frontend, ProcessPart
from kvatlas_frontend.fleet.columns import Columns
from kvatlas_frontend.main import loaded_and_running, until_stopped
from kvatlas_frontend.processes.control import (
    AskStatus,
    Fatal,
    GrantRow,
    Ready,
    Start,
    Status,
    Stop,
    Up,
    frame,
    messages_down,
    receive,
)
from kvatlas_frontend.processes.memory import SharedMemory
from kvatlas_frontend.processes.metrics import families
from kvatlas_frontend.processes.shared_load import SharedLoadTracker
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_native import SharedListener

_LAST: Final = -1  # number of the status that nobody asked for
_BEYOND_GRACE_S: Final = 2.0
# The supervisor's admin port tells of all processes; this one is for a look at one of them.
_ADMIN: Final = HostPort("127.0.0.1", 0)


def main(argv: Sequence[str]) -> int:
    """Run a process with the descriptors in `argv`; returns its exit status."""
    control_fd, lifeline, listener, memory = map(int, argv)
    control = socket.socket(fileno=control_fd)
    try:
        start = receive(control)
    except EOFError:
        return 1  # the supervisor ended first
    assert isinstance(start, Start)  # noqa: S101 - it is the first message
    settings = FrontendSettings.model_validate_json(start.settings)
    setup_logging(settings.log_level, settings.log_format, process=str(start.process))
    end_with_supervisor(lifeline, within_s=settings.grace_s + _BEYOND_GRACE_S)
    child = Child(settings, start, SharedMemory(memory, start.processes), listener)
    try:
        uvloop.run(child.run(control))
    except FatalError as error:
        control.setblocking(True)
        with contextlib.suppress(OSError):
            control.sendall(frame(Fatal(str(error), error.exit_status)))
        return error.exit_status
    return 0


def end_with_supervisor(lifeline: int, *, within_s: float) -> None:
    """End this process so long after the supervisor, even if its event loop hangs.

    The event loop learns of it too, from the control socket, and then ends in order.
    """

    def wait() -> None:
        os.read(lifeline, 1)  # nothing is ever written, so it returns at the end
        time.sleep(within_s)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


class Child:
    """The frontend of one process, as the supervisor wants it."""

    def __init__(
        self, settings: FrontendSettings, start: Start, memory: SharedMemory, listener: int
    ) -> None:
        self._settings = settings.model_copy(update={"admin": _ADMIN})
        self._start = start
        self._memory = memory
        self._listener = listener
        self._frontend: Frontend | None = None
        self._tracker: SharedLoadTracker | None = None
        self._writer: asyncio.StreamWriter
        self._is_stopping = False

    async def run(self, control: socket.socket) -> None:
        """Run until told to stop.

        Raises:
            FatalError: as the frontend of one process does.
        """
        stop = StopSignal()
        # A copy: `main` may have something to say after this one is closed.
        reader, self._writer = await asyncio.open_unix_connection(sock=control.dup())
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._say_last)
            tasks = TaskSet()
            stack.push_async_callback(tasks.close)
            tasks.start(self._obey(reader, stop), name="control")
            frontend = await stack.enter_async_context(
                loaded_and_running(self._settings, self._part())
            )
            os.close(self._listener)  # the data plane has its own, and closes it when it stops
            self._frontend = frontend
            frontend.tasks.start(tasks.failed(), name="control")
            self._send(Ready(frontend.tokenizer, str(frontend.admin.address)))
            await until_stopped(stop, frontend)
            self._is_stopping = True

    def _part(self) -> ProcessPart:
        return ProcessPart(
            number=self._start.process,
            of=self._start.processes,
            listener=SharedListener(self._listener, self._memory.connections, self._start.process),
            tracker=self._make_tracker,
        )

    def _make_tracker(self, columns: Columns) -> SharedLoadTracker:
        self._tracker = SharedLoadTracker(
            columns, memory=self._memory, process=self._start.process, ask=self._send
        )
        return self._tracker

    async def _obey(self, reader: asyncio.StreamReader, stop: StopSignal) -> None:
        async for message in messages_down(reader):
            match message:
                case AskStatus():
                    self._send(self._status(message.number))
                case GrantRow():
                    if self._tracker is not None:
                        self._tracker.granted(message.number, message.row)
                case Stop():
                    self._is_stopping = True
                    stop.ask("the supervisor")
                case Start():
                    pass  # it was the first message
        if self._is_stopping:
            os._exit(1)  # the supervisor was ended by a second signal, so nobody waits any more
        stop.ask("the supervisor's end")

    def _status(self, number: int) -> Status:
        frontend = self._frontend
        if frontend is None:
            return Status(number, ["it is starting"], [])
        return Status(number, frontend.obstacles(), families(frontend.metrics.registry))

    async def _say_last(self) -> None:
        """Say what was counted until the end."""
        if self._frontend is not None:
            self._send(self._status(_LAST))
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _send(self, message: Up) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(message))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
