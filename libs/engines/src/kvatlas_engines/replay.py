"""Requests replays at an engine's replay socket.

Each request gets a fresh DEALER socket: replies to an abandoned request must not mix with the new
ones, and an engine ignores an identity that it has seen before. Replies that wait are bounded by the
socket's queue.
"""

import asyncio
from collections.abc import Callable

import zmq

from kvatlas_engines.endpoint import Endpoint

_QUEUE_MESSAGES = 20_000  # engines keep 10,000 by default
_READ_AT_ONCE_MAX = 256


class ReplayClient:
    """The replay socket of one engine rank.

    Args:
        endpoint: the engine's replay socket.
        wake: called on the event loop when there may be replies.
    """

    def __init__(self, endpoint: Endpoint, wake: Callable[[], None]) -> None:
        self._endpoint = endpoint
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.SyncSocket] | None = None
        self._dealer: zmq.SyncSocket | None = None

    def request(self, start: int) -> None:
        """Request all messages from `start` on, and abandon the request before."""
        self.abandon()
        if self._context is None:
            self._context = zmq.Context()
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVHWM, _QUEUE_MESSAGES)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(self._endpoint.address)
        # A DEALER queues what it cannot send yet; it never blocks on its first message.
        dealer.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
        self._dealer = dealer
        # The descriptor signals news once, so everything that waits is read each time.
        self._loop.add_reader(int(dealer.getsockopt(zmq.FD)), self._wake)
        self._wake()  # sending may have consumed the signal of a reply

    def take(self) -> tuple[list[list[bytes]], bool]:
        """Return the frames of the replies that wait, and whether there may be more.

        Their number is bounded, so that others get their turn.
        """
        replies: list[list[bytes]] = []
        while self._dealer is not None and len(replies) < _READ_AT_ONCE_MAX:
            try:
                replies.append(self._dealer.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
        return replies, len(replies) == _READ_AT_ONCE_MAX

    def abandon(self) -> None:
        """Drop the request, with its replies."""
        if self._dealer is not None:
            self._loop.remove_reader(int(self._dealer.getsockopt(zmq.FD)))
            self._dealer.close(linger=0)
            self._dealer = None

    def close(self) -> None:
        """Close all sockets."""
        self.abandon()
        if self._context is not None:
            self._context.destroy(linger=0)
