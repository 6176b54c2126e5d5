"""One Redis or Valkey server, or one node of a cluster.

Every error becomes `LogUnavailable` with the server's address and without its credentials. The
caller decides whether to try again. The client library's own retries are off: they would delay the
caller and repeat appends.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ReadOnlyError, RedisError

from kvatlas_events.log import LogUnavailable
from kvatlas_events.redis.errors import unavailable
from kvatlas_events.redis.shard_group import Command, Reply, ShardGroup, group_on_server
from kvatlas_events.redis.url import Address, RedisUrl

CONNECT_S = 5.0
ANSWER_S = 10.0
_CALLS_MAX = 16
"""Calls at once, each on its own connection; a thousand deliveries may share one server object."""


class RedisServer:
    """An `Endpoint`: a server, connected when first used. Several tasks may call it.

    Args:
        url: address and login.
        node: address of a node that a cluster has named; None: the URL's own address.
        answer_s: time to answer, in seconds, beyond the time that a command itself may wait.

    Raises:
        ValueError: the URL cannot be used.
    """

    def __init__(
        self, url: RedisUrl, *, node: Address | None = None, answer_s: float = ANSWER_S
    ) -> None:
        self.name = url.name if node is None else f"{url.name}: node {node[0]}:{node[1]}"
        self.shards = url.shards
        self.connections = 0
        """Number of connections made. The library replaces a broken one silently, but the server
        behind a new connection may have been restarted."""
        self._answer_s = answer_s
        self._calls = asyncio.Semaphore(max(_CALLS_MAX, url.shards))
        try:
            # The library's own types are unknown in part.
            pool: Any = _Pool.from_url(  # pyright: ignore[reportUnknownMemberType]
                url.at(node or url.addresses[0]),
                protocol=2,  # replies have one shape in every release since 6.2
                socket_connect_timeout=CONNECT_S,
                socket_timeout=None,  # each call has its own
                socket_keepalive=True,
                retry=Retry(NoBackoff(), 0),
                redis_connect_func=self._connected,
            )
            self._client: Any = redis.Redis.from_pool(pool)
            connection: Any = pool.make_connection()  # checks the rest of the URL
        except (ValueError, TypeError, RedisError):
            # The library's text may quote a part of the URL that is a password.
            raise ValueError(f"{self.name}: a part of this URL cannot be used") from None
        if isinstance(connection, redis.SSLConnection):
            pool.tls = _tls_context(self.name, connection)

    def shard_groups(self, cell: str) -> list[ShardGroup]:
        """Return the groups of a cell's log: one with all shards."""
        return [group_on_server(self, cell, self.shards)]

    async def call(self, *command: str | bytes | int, wait_s: float = 0.0) -> Reply:
        """See `Endpoint`."""
        return await self._bounded(lambda: self._client.execute_command(*command), wait_s)

    async def call_together(self, commands: Sequence[Command], *, atomic: bool) -> list[Reply]:
        """See `Endpoint`."""
        pipeline = self._client.pipeline(transaction=atomic)
        for command in commands:
            pipeline.execute_command(*command)
        replies = await self._bounded(lambda: pipeline.execute(raise_on_error=False), 0.0)
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            # This server is a replica now. New connections may reach another server by this name.
            await self._client.connection_pool.disconnect(inuse_connections=False)
        return replies

    def unavailable(self, error: Exception) -> LogUnavailable:
        """See `Endpoint`."""
        return unavailable(self.name, error, answer_s=self._answer_s)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _connected(self, connection: redis.Connection) -> None:
        await connection.on_connect()
        self.connections += 1

    async def _bounded(self, call: Callable[[], Awaitable[Reply]], wait_s: float) -> Reply:
        try:
            async with self._calls, asyncio.timeout(wait_s + self._answer_s):
                return await call()
        except AskError as error:
            raise self.unavailable(error) from error  # a normal answer: the connection is fine
        except (RedisError, OSError) as error:
            # A connection may still hold the rest of a reply after an error.
            await self._client.connection_pool.disconnect(inuse_connections=False)
            raise self.unavailable(error) from error


class _Pool(redis.ConnectionPool):
    """Shares one TLS context: each connection would read the system's CAs again."""

    tls: Any = None

    def make_connection(self) -> redis.Connection:
        connection: Any = super().make_connection()  # pyright: ignore[reportUnknownMemberType]
        if self.tls is not None:
            connection.ssl_context = self.tls
        return connection


def _tls_context(name: str, connection: redis.SSLConnection) -> object:
    """Read certificates and key now, not at the first connection."""
    context: Any = connection.ssl_context  # it has no types
    try:
        context.get()
    except (ssl.SSLError, OSError) as error:
        raise ValueError(
            f"{name}: ssl_ca_certs, ssl_certfile and ssl_keyfile must be files in PEM, "
            f"and key and certificate must be a pair: {error}"
        ) from None
    return context
