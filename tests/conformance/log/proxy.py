"""A TCP proxy that changes its server, falls silent, or adds TLS, as a test asks."""

import asyncio
import contextlib
import ssl
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16


class TcpProxy:
    """Passes all bytes from a loopback port to another port and back.

    Args:
        upstream_port: port of the server; a change is for connections that are made after it.
        tls: TLS that the proxy terminates; None: none.
    """

    def __init__(self, upstream_port: int = 0, *, tls: ssl.SSLContext | None = None) -> None:
        self.upstream_port = upstream_port
        self.port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._passing = set[asyncio.Task[None]]()
        self._open: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.silence()
        for each in self._open:
            each.transport.abort()
        if self._passing:
            await asyncio.wait(self._passing)

    def silence(self) -> None:
        """Keep the present connections open, and let them carry nothing from now on."""
        for each in self._passing:
            each.cancel()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._open.append(to_client)
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        except OSError:
            to_client.transport.abort()  # as if the server had refused the client
            return
        self._open.append(to_server)
        for source, sink in ((client, to_server), (server, to_client)):
            passing = asyncio.create_task(_pass(source, sink))
            self._passing.add(passing)
            passing.add_done_callback(self._passing.discard)


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    sink.transport.abort()  # not when cancelled: a silent network closes nothing
