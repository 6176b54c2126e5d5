"""The Redis log in its forms, each on a real server: alone, in shards, as a cluster, behind TLS."""

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import redis.asyncio as redis

from kvatlas_events import LogPosition, LogReader, LogWriter
from kvatlas_events.redis.open import open_redis
from kvatlas_events.redis.reader import RedisReader
from kvatlas_events.redis.url import RedisUrl
from kvatlas_events.redis.writer import RECORDS_MAX, RedisWriter
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_testing.valkey_cluster import EmbeddedValkeyCluster
from tests.conformance.log.certificates import Authority
from tests.conformance.log.proxy import TcpProxy

SHARDS = 4
USER = "log"
PASSWORD = "s3cret/of:ours"  # noqa: S105 - of a server of ours
PASSWORD_IN_URL = "s3cret%2Fof%3Aours"  # noqa: S105 - the same
RIGHTS = "+set +get +xadd +xread +xlen +xinfo +multi +exec +ping"
"""As the README has them; a cluster's account needs `+cluster|slots` too."""


class Server(Protocol):
    """A server that keeps its address when it is started again."""

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class RedisTransport:
    """One cell on a server in the test's hands, or at a URL that is not."""

    def __init__(self, server: Server | None, url: Callable[[], str], *, shards: int = 1) -> None:
        self.server = server
        self.shards = shards
        self.position = ",".join(["5-0"] * shards)
        self.ours_to_stop = server is not None
        self.repeats_what_was_given_up = False
        self.cell = f"test-{uuid.uuid4().hex}"
        self.open: list[LogWriter | LogReader] = []
        self._url = url

    @property
    def url(self) -> str:
        return self._url()

    def client(self) -> Any:  # noqa: ANN401 - the library's, whose own types are unknown in part
        """Return a client of the server or the cluster, to be used as a context."""
        checked = RedisUrl.of(self.url)
        kind: Any = redis.RedisCluster if checked.is_cluster else redis.Redis
        return kind.from_url(checked.at(checked.addresses[0]))

    async def start(self) -> None:
        if self.server is not None and not self.server.is_running:
            self.server.start()  # blocks; nothing of the test has to go on meanwhile

    async def stop(self) -> None:
        if self.server is not None:
            self.server.stop()

    def writer(self, *, records_max: int = RECORDS_MAX) -> LogWriter:
        writer = RedisWriter(open_redis(self._url()), cell=self.cell, records_max=records_max)
        self.open.append(writer)
        return writer

    def reader(self, position: LogPosition | None = None) -> LogReader:
        reader = RedisReader(open_redis(self._url()), cell=self.cell, position=position)
        self.open.append(reader)
        return reader

    async def close(self) -> None:
        for each in self.open:
            await each.close()


def with_a_port(server: EmbeddedValkey) -> EmbeddedValkey:
    """Let a stopped server have a port, which it keeps for tests that start it late or again."""
    server.start()
    server.stop()
    return server


@asynccontextmanager
async def alone(*, shards: int = 1) -> AsyncGenerator[RedisTransport, None]:
    server = with_a_port(EmbeddedValkey())
    transport = RedisTransport(server, lambda: f"{server.url}?shards={shards}", shards=shards)
    yield transport
    await transport.close()
    server.stop()


@asynccontextmanager
async def by_url(url: str) -> AsyncGenerator[RedisTransport, None]:
    """Use a server that is somebody's, and leave nothing there."""
    transport = RedisTransport(None, lambda: url)
    yield transport
    await transport.close()
    async with redis.from_url(url) as client:
        await client.delete(
            *(f"kvatlas:{{{transport.cell}}}:{what}" for what in ("log:0", "identity"))
        )


@asynccontextmanager
async def in_cluster(cluster: EmbeddedValkeyCluster) -> AsyncGenerator[RedisTransport, None]:
    """Use a cluster that others use too, each in cells of its own; one that broke it is mended."""
    transport = RedisTransport(cluster, lambda: cluster.url, shards=8)
    await transport.start()
    yield transport
    await transport.close()


@asynccontextmanager
async def with_tls(directory: Path) -> AsyncGenerator[RedisTransport, None]:
    """Use an account of few rights, by a connection that shows a certificate of our own CA."""
    authority = Authority()
    trusted = authority.write(directory / "ca.pem")
    account = ("--user", USER, "on", f">{PASSWORD}", "~kvatlas:*", *RIGHTS.split())
    server = with_a_port(EmbeddedValkey(options=account))
    async with TcpProxy(server.port, tls=authority.context("127.0.0.1")) as proxy:
        login = f"{USER}:{PASSWORD_IN_URL}@127.0.0.1:{proxy.port}"
        transport = RedisTransport(server, lambda: f"rediss://{login}?ssl_ca_certs={trusted}")
        yield transport
        await transport.close()
    server.stop()
