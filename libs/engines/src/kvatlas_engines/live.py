"""Connections to an engine's PUB socket: kept up, and read many messages at a time.

What the bytes mean is known to the native `EngineSubscriber`; here are only the connections, and
when they are read. A general ZMQ library has threads that read, hand over frame by frame and wake
the event loop for it: at an engine's small messages that is most of what a publisher would do.

Whoever drives this is woken when there is news, takes all of it at once, and may let more come
together before it does (`pause`): meanwhile the kernel's buffer fills. Nothing is ever sent to the
engine that would make it wait; what we do not read in time its own socket drops.
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
"""So much is read ahead of whoever takes it: it is still in the cache then, and buffers stay small."""
_RECONNECT_S_MIN = 0.1
_RECONNECT_S_MAX = 1.0
_HANDSHAKE_S = 30.0


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine has us as a subscriber: what it says from now on comes."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A connection is gone; another one is tried for."""


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one connection, in order."""

    seqs: list[int]
    payloads: list[bytes]
    malformed: int
    """So many others were none of an engine."""
    first_malformed: str | None


News = Opened | Closed | Run


class Live:
    """The live end of one engine rank's stream, from `start` to `close`.

    Args:
        endpoint: where the engine publishes.
        wake: called when there is something to take; on the event loop.
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
        """Let go of everything."""
        if self._server is not None:
            self._server.close()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.over for connection in connections))

    # --- what came ---

    @property
    def is_open(self) -> bool:
        """The engine has us as a subscriber."""
        return any(connection.is_open for connection in self._connections)

    @property
    def is_behind(self) -> bool:
        """As much was read as may wait: more is there, and resting would not help."""
        return any(connection.is_full for connection in self._connections)

    def take(self) -> Iterable[News]:
        """Return what has happened since the last call.

        A connection's opening comes before its messages, its end after them.
        """
        if self._connecting is not None and self._connecting.done():
            self._connecting.result()  # it never ends but by an error
        news, self._news = self._news, []
        for connection in self._connections:
            connection.take_run(news)
        return news

    def pause(self) -> None:
        """Leave what comes to the kernel, until `resume`."""
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
        """A connection is there; nobody has said anything yet."""
        self._connections.append(connection)

    def on_open(self) -> None:
        """A connection's handshake is over."""
        self._refused = None
        self._news.append(Opened())

    def on_refused(self, why: str) -> None:
        """The peer is none that we can follow; said once, for it is tried again."""
        if why != self._refused:
            self._refused = why
            log.warning("%s is not an engine's event stream: %s", self._endpoint, why)

    def on_lost(self, connection: "_Connection") -> None:
        """A connection is gone."""
        self._connections.remove(connection)
        connection.take_run(self._news)
        if connection.was_open:
            self._news.append(Closed())
        self.wake()


class _Connection(asyncio.BufferedProtocol):
    """One connection, of either making. `over` is done when it is gone."""

    def __init__(self, live: Live) -> None:
        loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = loop.create_future()
        self.is_open = False
        self.was_open = False
        self.is_full = False
        self._live = live
        self._loop = loop
        self._subscriber = EngineSubscriber()
        self._unread_bytes = 0
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.TimerHandle | None = None

    # --- what the transport calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(EngineSubscriber.greeting())
        self._handshake = self._loop.call_later(_HANDSHAKE_S, self._refuse, "it does not answer")
        self._live.on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            answer = self._subscriber.feed(self._buffer[:nbytes])
        except ValueError as error:
            self._refuse(str(error))
            return
        if answer and self._transport is not None:
            self._transport.write(answer)
        self._unread_bytes += nbytes
        if self._unread_bytes >= _UNREAD_BYTES_MAX and not self.is_full:
            self.pause()  # until it is taken
            self.is_full = True
        if not self.was_open and self._subscriber.is_open:
            self.is_open = self.was_open = True
            self._end_handshake()
            self._live.on_open()
        self._live.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # an engine that goes is no error of ours
        self._end_handshake()
        self.is_open = self.is_full = False
        self._live.on_lost(self)
        if not self.over.done():
            self.over.set_result(None)

    # --- what its owner calls ---

    def take_run(self, news: list[News]) -> None:
        """Append what came, if anything has."""
        seqs, payloads, malformed, first_malformed = self._subscriber.take()
        self._unread_bytes = 0
        if self.is_full:
            self.is_full = False
            self.resume()
        if seqs or malformed:
            news.append(Run(seqs, payloads, malformed, first_malformed))

    def pause(self) -> None:
        """Read no more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        self._live.on_refused(why)
        self.abort()

    def _end_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
