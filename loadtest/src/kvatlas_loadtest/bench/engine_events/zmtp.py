"""The publishing side of ZMTP 3.0 with the NULL mechanism (ZeroMQ RFC 23), for framed messages.

A general ZMQ library spends more on a small message than a publisher needs to decode it. Where all
processes share two cores, that would dominate the measurement. Framed bytes cost little to send.
"""

import socket
import struct
from collections.abc import Sequence

_MORE = 1
_LONG = 2
_COMMAND = 4
_SHORT_BYTES_MAX = 255
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_GREETING = _SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_PROPERTIES = b"".join(
    (bytes([len(b"Socket-Type")]), b"Socket-Type", struct.pack(">I", len(b"PUB")), b"PUB")
)
_READY = bytes([len(b"READY")]) + b"READY" + _PROPERTIES
_SUBSCRIBES = 1


def message(parts: Sequence[bytes]) -> bytes:
    """Frame one message; it has at least one part."""
    heads = [_MORE] * (len(parts) - 1) + [0]
    return b"".join(_frame(flags, part) for flags, part in zip(heads, parts, strict=True))


def await_subscriber(listener: socket.socket) -> socket.socket:
    """Accept one connection and return it once its peer has subscribed.

    Raises:
        ConnectionError: the peer went away, or does not speak the protocol.
    """
    connection, _ = listener.accept()
    try:
        _shake_hands(connection)
    except ConnectionError:
        connection.close()
        raise
    return connection


def _shake_hands(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(_GREETING)
    if not _received(connection, len(_GREETING)).startswith(_SIGNATURE[:1]):
        raise ConnectionError("the peer's greeting is not ZMTP")
    connection.sendall(_frame(_COMMAND, _READY))
    while True:
        flags, body = _read_frame(connection)
        if not flags & _COMMAND and body[:1] == bytes([_SUBSCRIBES]):
            return


def _frame(flags: int, body: bytes) -> bytes:
    if len(body) > _SHORT_BYTES_MAX:
        return struct.pack(">BQ", flags | _LONG, len(body)) + body
    return bytes([flags, len(body)]) + body


def _read_frame(connection: socket.socket) -> tuple[int, bytes]:
    (flags,) = _received(connection, 1)
    size = int.from_bytes(_received(connection, 8 if flags & _LONG else 1), "big")
    return flags, _received(connection, size)


def _received(connection: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        part = connection.recv(size - len(body))
        if not part:
            raise ConnectionError("the peer went away before it had subscribed")
        body += part
    return body
