"""TLS in front of a real server that has none built in, with certificates of our own making."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trustme

_CHUNK = 1 << 16


@dataclass
class Authority:
    """A CA, and what it signs."""

    ca: trustme.CA = field(default_factory=trustme.CA)

    def write(self, path: Path) -> Path:
        """Write the CA's certificate, as `ssl_ca_certs` takes it."""
        self.ca.cert_pem.write_to_path(path)
        return path

    def context(self, *names: str) -> ssl.SSLContext:
        """Return what a server that has these names shows."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate: Any = self.ca.issue_cert(*names)  # whose types need an optional library
        certificate.configure_cert(context)
        return context

    def demand(self, context: ssl.SSLContext) -> None:
        """Let a server want a certificate of this CA from its clients."""
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.ca.cert_pem.bytes().decode())


class TlsProxy:
    """Terminates TLS on a port of loopback, and passes all bytes to another port and back."""

    def __init__(self, upstream_port: int, context: ssl.SSLContext) -> None:
        self._upstream_port = upstream_port
        self._context = context
        self._server: asyncio.Server | None = None
        self._serving = set[asyncio.Task[None]]()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._context
        )
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
        for each in self._serving:
            each.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        async with _closing(to_client):
            try:
                server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            except OSError:
                return  # the client sees its connection end, as if the server had refused it
            async with _closing(to_server):
                ways = {
                    asyncio.create_task(_pass(client, to_server)),
                    asyncio.create_task(_pass(server, to_client)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.wait(ways)


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncGenerator[None, None]:
    try:
        yield
    except asyncio.CancelledError:
        pass  # the proxy is closed; nobody waits for what this one served
    finally:
        writer.transport.abort()
