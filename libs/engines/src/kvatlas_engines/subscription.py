"""A subscription to an engine's PUB socket: keeps the connection up, and reads many messages at a time.

The native `EngineSubscriber` knows the protocol; here are the connections, and when they are read. A
general ZMQ library has threads that read, hand over each frame and wake the event loop for it. With an
engine's small messages that would be most of a publisher's cost.

The owner is woken when there is news and takes all of it at once. It may let more come together before
that (`pause`); meanwhile the kernel's buffer fills. The engine never waits for us: messages that we do
not read in time are dropped by its own socket.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from kvatlas_engines.endpoint import Endpoint
from kvatlas_native import EngineSubscriber

log = logging.getLogger(__name__)

_READ_BYTES = 64 << 10
_UNREAD_BYTES_MAX = 256 << 10
"""Bytes read ahead of the owner: few enough to be still in the CPU's cache when they are taken."""
_RECONNECT_S_MIN = 0.1
_RECONNECT_S_MAX = 1.0
_HANDSHAKE_S = 30.0


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine has us as a subscriber: its messages come from now on."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A connection is gone; another one is attempted."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one connection, in order."""

    seqs: list[int]
    payloads: list[bytes]
    malformed: int
    """The number of other messages, which are not an engine's."""
    first_malformed: str | None
    """The first such message's error."""


News = Opened | Closed | Messages


class Subscription:
    """A subscription to one engine rank, from `start` to `close`.

    Args:
        endpoint: the engine's PUB socket.
        wake: called on the event loop when there is something to take.
    """

    def __init__(self, endpoint: Endpoint, wake: Callable[[], None]) -> None:
        self.wake = wake
        self._endpoint = endpoint
        self._connections: list[_Connection] = []
        self._news: list[News] = []
        self._refused: str | None = None
        self._server: asyncio.Server | None = None
        self._connecting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, or begin to connect.

        Raises:
            OSError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        if self._endpoint.binds:
            host, port = self._endpoint.host_port
            self._server = await loop.create_server(lambda: _Connection(self), host, port)
        else:
            self._connecting = asyncio.create_task(self._keep_connected(), name="engine connection")
            self._connecting.add_done_callback(lambda _: self.wake())

    async def close(self) -> None:
        """Close the listener and all connections."""
        if self._server is not None:
            self._server.close()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.over for connection in connections))

    # --- input ---

    @property
    def is_open(self) -> bool:
        """The engine has us as a subscriber."""
        return any(connection.is_open for connection in self._connections)

    @property
    def is_behind(self) -> bool:
        """A connection has read as much as may wait, so that waiting brings no more."""
        return any(connection.is_full for connection in self._connections)

    def take(self) -> Iterable[News]:
        """Return the news since the last call.

        `Opened` comes before a connection's messages, `Closed` after them.
        """
        if self._connecting is not None and self._connecting.done():
            self._connecting.result()  # it ends only with an error
        news, self._news = self._news, []
        for connection in self._connections:
            connection.take_messages(news)
        return news

    def pause(self) -> None:
        """Leave incoming bytes to the kernel, until `resume`."""
        for connection in self._connections:
            connection.pause()

    def resume(self) -> None:
        """Read again."""
        for connection in self._connections:
            connection.resume()

    # --- connections ---

    async def _keep_connected(self) -> None:
        pause_s = _RECONNECT_S_MIN
        while True:
            connection = _Connection(self)
            try:
                await self._connect(connection)
            except OSError as error:
                log.debug("no connection to %s: %s", self._endpoint, error)
            else:
                await asyncio.shield(connection.over)
                if connection.was_open:
                    pause_s = _RECONNECT_S_MIN
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RECONNECT_S_MAX)

    async def _connect(self, connection: "_Connection") -> None:
        loop = asyncio.get_running_loop()
        path = self._endpoint.path
        if path is not None:
            await loop.create_unix_connection(lambda: connection, path)
        else:
            await loop.create_connection(lambda: connection, *self._endpoint.host_port)

    def on_made(self, connection: "_Connection") -> None:
        """A connection is made; its handshake begins."""
        self._connections.append(connection)

    def on_open(self) -> None:
        """A connection's handshake is over."""
        self._refused = None
        self._news.append(Opened())

    def on_refused(self, why: str) -> None:
        """The peer is not an engine that we can follow. This is logged once, since attempts go on."""
        if why != self._refused:
            self._refused = why
            log.warning("%s is not an engine's event stream: %s", self._endpoint, why)

    def on_lost(self, connection: "_Connection") -> None:
        """A connection is gone."""
        self._connections.remove(connection)
        connection.take_messages(self._news)
        if connection.was_open:
            self._news.append(Closed())
        self.wake()


class _Connection(asyncio.BufferedProtocol):
    """One connection, made by either side. `over` is done when it is gone."""

    def __init__(self, owner: Subscription) -> None:
        loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = loop.create_future()
        self.is_open = False
        self.was_open = False
        self.is_full = False
        self._owner = owner
        self._loop = loop
        self._subscriber = EngineSubscriber()
        self._unread_bytes = 0
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.TimerHandle | None = None

    # --- calls of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(EngineSubscriber.greeting())
        self._handshake = self._loop.call_later(_HANDSHAKE_S, self._refuse, "it does not answer")
        self._owner.on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            answer = self._subscriber.receive(self._buffer[:nbytes])
        except ValueError as error:
            self._refuse(str(error))
            return
        if answer and self._transport is not None:
            self._transport.write(answer)
        self._unread_bytes += nbytes
        if self._unread_bytes >= _UNREAD_BYTES_MAX and not self.is_full:
            self.pause()  # until the owner takes it
            self.is_full = True
        if not self.was_open and self._subscriber.is_open:
            self.is_open = self.was_open = True
            self._end_handshake()
            self._owner.on_open()
        self._owner.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # an engine may end at any time
        self._end_handshake()
        self.is_open = self.is_full = False
        self._owner.on_lost(self)
        if not self.over.done():
            self.over.set_result(None)

    # --- calls of the owner ---

    def take_messages(self, news: list[News]) -> None:
        """Append the messages that came, if there are any."""
        seqs, payloads, malformed, first_malformed = self._subscriber.take_messages()
        self._unread_bytes = 0
        if self.is_full:
            self.is_full = False
            self.resume()
        if seqs or malformed:
            news.append(Messages(seqs, payloads, malformed, first_malformed))

    def pause(self) -> None:
        """Read no more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        self._owner.on_refused(why)
        self.abort()

    def _end_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
