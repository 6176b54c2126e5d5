"""The messages between the supervisor and a process of the frontend, on a socket that only they have.

Each is msgpack behind its length in four bytes, big-endian. Both ends are of one installation, so
there are no versions.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

_LENGTH_BYTES: Final = 4


class Sample(msgspec.Struct, array_like=True, frozen=True):
    """One value of a metric."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, array_like=True, frozen=True):
    """A metric with all its values."""

    name: str
    text: str
    kind: str
    samples: list[Sample]


class _Message(msgspec.Struct, array_like=True, frozen=True, tag=True):
    pass


class Start(_Message, frozen=True):
    """First of all: what the process is.

    Attributes:
        settings: `FrontendSettings` as JSON.
    """

    settings: str
    process: int
    processes: int


class AskStatus(_Message, frozen=True):
    """Asks for a `Status`."""

    number: int


class GrantRow(_Message, frozen=True):
    """Answers a `ClaimRow`; may come late, or never."""

    number: int
    row: int


class Stop(_Message, frozen=True):
    """Asks the process to finish within its grace period."""


class Ready(_Message, frozen=True):
    """The process serves, and has an admin port of its own."""

    tokenizer: str
    admin: str


class Fatal(_Message, frozen=True):
    """The process cannot work, as its `FatalError` says."""

    text: str
    exit_status: int


class Status(_Message, frozen=True):
    """How a process is: answers `AskStatus`; once more at the end, with the number -1."""

    number: int
    obstacles: list[str]  # why it cannot serve; empty: it can
    families: list[Family]


class ClaimRow(_Message, frozen=True):
    """Claims the shared row of a worker."""

    number: int
    worker_id: int
    dp_rank: int


class ReleaseRow(_Message, frozen=True):
    """Gives a claim up."""

    number: int


Down = Start | AskStatus | GrantRow | Stop
"""Messages from the supervisor."""
Up = Ready | Fatal | Status | ClaimRow | ReleaseRow
"""Messages to the supervisor."""

_encoder = msgspec.msgpack.Encoder()
_decode_down = msgspec.msgpack.Decoder[Down](Down).decode
_decode_up = msgspec.msgpack.Decoder[Up](Up).decode


def frame(message: Down | Up) -> bytes:
    """Encode a message, its length before it."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


def receive(control: socket.socket) -> Down:
    """Wait for one message from the supervisor.

    Raises:
        EOFError: the supervisor has ended.
    """
    length = int.from_bytes(_receive_exactly(control, _LENGTH_BYTES), "big")
    return _decode_down(_receive_exactly(control, length))


async def messages_down(reader: asyncio.StreamReader) -> AsyncGenerator[Down]:
    """Messages from the supervisor, until it ends."""
    while (payload := await _payload(reader)) is not None:
        yield _decode_down(payload)


async def messages_up(reader: asyncio.StreamReader) -> AsyncGenerator[Up]:
    """Messages from a process, until it ends."""
    while (payload := await _payload(reader)) is not None:
        yield _decode_up(payload)


async def _payload(reader: asyncio.StreamReader) -> bytes | None:
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None  # the other end is gone, perhaps in the middle of a message


def _receive_exactly(control: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = control.recv(count - len(received))
        if not part:
            raise EOFError
        received += part
    return received
