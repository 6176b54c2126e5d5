"""Just enough HTTP/1.1 to measure a proxy: a client and an engine that cost next to nothing.

A general library spends on each request about what the proxy itself may spend, and on the same
cores. Here a request is bytes made beforehand, and an answer is searched for two marks. Both ends
turn Nagle's algorithm off.
"""

import asyncio
import re
import socket
import time
from dataclasses import dataclass
from typing import cast

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_FIRST_EVENT = b"data: "
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class WireError(Exception):
    """The other side closed, or answered something that is no streamed answer."""


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Send small writes at once."""
    sock = cast("socket.socket", transport.get_extra_info("socket"))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def post(path: str, body: bytes) -> bytes:
    """A whole request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer's times, in seconds from when the request was sent, and its head."""

    first_event_s: float
    last_byte_s: float
    head: bytes

    def header(self, name: str) -> str:
        """A header's value; "" if there is none."""
        found = re.search(rb"\r\n" + name.encode() + rb": *([^\r]*)", self.head, re.IGNORECASE)
        return found.group(1).decode() if found else ""


class Connection(asyncio.Protocol):
    """One kept connection of a client, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._head = b""
        self._tail = b""
        self._sent = 0.0
        self._first_event: float | None = None

    @classmethod
    async def open(cls, address: str) -> "Connection":
        """Connect to `host:port`."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, int(port))
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to send."""
        self._transport = cast("asyncio.Transport", transport)
        no_delay(transport)

    async def send(self, request: bytes) -> Answer:
        """Send a request, wait for the end of its answer.

        Raises:
            WireError: there was none, or not the one of status 200.
        """
        if self._transport is None or self._transport.is_closing():
            raise WireError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._head = self._tail = b""
        self._first_event = None
        self._sent = time.perf_counter()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        """Look for the first event, and for the end."""
        if self._answer is None or self._answer.done():
            return
        now = time.perf_counter()
        if self._first_event is None:
            self._head += data
            head, mark, body = self._head.partition(_HEAD_END)
            if mark and not head.startswith(b"HTTP/1.1 200"):
                self._answer.set_exception(WireError(self._head[:300].decode(errors="replace")))
                return
            if _FIRST_EVENT in body:
                self._first_event = now - self._sent
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        if self._first_event is not None and self._tail == _LAST_CHUNK:
            head = self._head.partition(_HEAD_END)[0]
            self._answer.set_result(Answer(self._first_event, now - self._sent, head))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WireError(f"the connection was closed: {exc}"))

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()


def request_end(buffer: bytes | bytearray) -> int | None:
    """Where the first request in `buffer` ends; None: it is not whole yet."""
    head = buffer.find(_HEAD_END)
    if head < 0:
        return None
    length = _LENGTH.search(buffer, 0, head + 2)
    end = head + len(_HEAD_END) + (int(length.group(1)) if length else 0)
    return end if len(buffer) >= end else None
