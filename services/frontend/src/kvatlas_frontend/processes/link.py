"""One process of the frontend, as the supervisor sees it."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

from kvatlas_frontend.processes.control import (
    AskStatus,
    ClaimRow,
    Down,
    Fatal,
    Ready,
    ReleaseRow,
    Start,
    Status,
    frame,
    messages_up,
)

_ASKS_MAX: Final = 4  # without an answer
_STDERR: Final = 2
_MODULE: Final = "kvatlas_frontend.processes.child"

Hear = Callable[["Link", Ready | ClaimRow | ReleaseRow], None]
"""Takes what a process says by itself."""


class Link:
    """Starts a process, talks to it, and knows what it said last."""

    def __init__(
        self,
        process: int,
        handle: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        lifeline: int,
        hear: Hear,
    ) -> None:
        self.process = process
        self.status: Status | None = None
        self.fatal: Fatal | None = None
        self.admin = ""  # address of its own admin port, once it serves
        self.is_up = False  # whether it answered the last time it was asked
        self._handle = handle
        self._reader, self._writer = streams
        self._lifeline = lifeline
        self._hear = hear
        self._asked: dict[int, asyncio.Event] = {}
        self._asks = 0
        self._is_over = False
        self._listening = asyncio.create_task(self._listen(), name=f"process {process}")

    @classmethod
    async def start(cls, start: Start, shared: Sequence[int], hear: Hear) -> "Link":
        """Start a process.

        Args:
            start: its first message.
            shared: descriptors that it gets: the listening socket, and the shared memory.
            hear: takes what it says by itself.
        """
        # A lifeline has no other use than to end with the supervisor, however that ends.
        lifeline, held = os.pipe()
        ours, theirs = socket.socketpair()
        descriptors = (theirs.fileno(), lifeline, *shared)
        try:
            handle = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, *map(str, descriptors)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STDERR,  # the supervisor's stdout has the ready line alone
                pass_fds=descriptors,
            )
        except BaseException:
            os.close(held)
            ours.close()
            raise
        finally:
            os.close(lifeline)
            theirs.close()
        streams = await asyncio.open_unix_connection(sock=ours)
        link = cls(start.process, handle, streams, held, hear)
        link.send(start)
        return link

    @property
    def pid(self) -> int:
        """The number by which the system knows the process."""
        return self._handle.pid

    def send(self, message: Down) -> None:
        """Send a message; a process that has ended gets none."""
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(ProcessLookupError):
            self._handle.kill()

    async def update(self, limit_s: float) -> None:
        """Ask for the process's status, and wait for the answer for at most `limit_s`."""
        if len(self._asked) >= _ASKS_MAX:
            self.is_up = False  # and no more is sent, so that a hung process costs no memory
            return
        self._asks += 1
        answered = self._asked[self._asks] = asyncio.Event()
        self.send(AskStatus(self._asks))
        try:
            async with asyncio.timeout(limit_s):
                await answered.wait()
            self.is_up = not self._is_over
        except TimeoutError:
            self.is_up = False

    async def ended(self) -> str:
        """Wait until the process has ended and all that it said is taken in; returns how it ended."""
        status = await self._handle.wait()
        await self._listening
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        os.close(self._lifeline)
        self._is_over = True
        self.is_up = False
        for answered in self._asked.values():
            answered.set()
        if status < 0:
            return f"by {signal.Signals(-status).name}"
        return f"with status {status}"

    async def _listen(self) -> None:
        async for message in messages_up(self._reader):
            match message:
                case Status():
                    self.status = message
                    answered = self._asked.pop(message.number, None)
                    if answered is not None:
                        answered.set()
                case Fatal():
                    self.fatal = message
                case Ready():
                    self.admin = message.admin
                    self._hear(self, message)
                case ClaimRow() | ReleaseRow():
                    self._hear(self, message)
