"""One Redis or Valkey server, as the log's writer and reader talk to it.

Everything that can go wrong with it becomes `LogUnavailable` here, with the server's address and
never with its credentials. Whether to try again is for the caller to say, so the client library's
own retries are off: they would stall a caller that has better things to do, and repeat appends.
"""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from kvatlas_events.log import LogUnavailable
from kvatlas_events.redis_layout import Command, Home, Reply, home_of_all
from kvatlas_events.redis_url import Address, RedisUrl

CONNECT_S = 5.0
ANSWER_S = 10.0
_CALLS_MAX = 16
"""At once, each on a connection of its own: a writer can be shared by a thousand deliveries."""
_OF_A_TRANSACTION = re.compile(
    r"Command # \d+ \(.*\) of pipeline caused error: \(['\"](.*)['\"],\)", re.DOTALL
)


class Elsewhere(LogUnavailable):
    """The server is a node of a cluster, and the keys are another's, or on their way to it.

    `address`: of the node that has them; None while they are on their way.
    """

    def __init__(self, why: str, address: Address | None) -> None:
        super().__init__(why)
        self.address = address


class RedisServer:
    """A lazily connected server; several tasks may call it.

    Args:
        url: what to log in with, and where.
        node: the address, if it is not the URL's only one but a node that a cluster has named.
        answer_s: for a server to answer, beyond what it may wait.

    Raises:
        ValueError: the URL cannot be used.
    """

    def __init__(
        self, url: RedisUrl, *, node: Address | None = None, answer_s: float = ANSWER_S
    ) -> None:
        self.name = url.name if node is None else f"{url.name}: node {node[0]}:{node[1]}"
        self.shards = url.shards
        self.connections = 0
        """How many have been made: the library replaces a broken one in silence, but behind a new
        one there may be a server that has been started again."""
        self._answer_s = answer_s
        self._turn = asyncio.Semaphore(max(_CALLS_MAX, url.shards))
        try:
            # The library's own types are unknown in part.
            pool: Any = _Pool.from_url(  # pyright: ignore[reportUnknownMemberType]
                url.at(node or url.addresses[0]),
                protocol=2,  # replies of one shape from every release since 6.2
                socket_connect_timeout=CONNECT_S,
                socket_timeout=None,  # each call brings its own
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
            pool.tls = _tls(self.name, connection)

    def homes(self, cell: str) -> list[Home]:
        """Return where the shards of a cell's log lie: all of them here."""
        return [home_of_all(self, cell, self.shards)]

    async def call(self, *command: str | bytes | int, wait_s: float = 0.0) -> Reply:
        """Return the reply to one command that the server may hold back for `wait_s`."""
        return await self._guarded(lambda: self._client.execute_command(*command), wait_s)

    async def call_together(self, commands: Sequence[Command], *, atomic: bool) -> list[Reply]:
        """Return the replies to `commands`, sent at once; a command's own error is its reply."""
        pipeline = self._client.pipeline(transaction=atomic)
        for command in commands:
            pipeline.execute_command(*command)
        replies = await self._guarded(lambda: pipeline.execute(raise_on_error=False), 0.0)
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            # A replica by now: behind its name there may be another server, for new connections.
            await self._client.connection_pool.disconnect(inuse_connections=False)
        return replies

    def unusable(self, error: Exception) -> LogUnavailable:
        """As of `Place`."""
        return unusable(self.name, error, answer_s=self._answer_s)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _connected(self, connection: redis.Connection) -> None:
        await connection.on_connect()
        self.connections += 1

    async def _guarded(self, call: Callable[[], Awaitable[Reply]], wait_s: float) -> Reply:
        try:
            async with self._turn, asyncio.timeout(wait_s + self._answer_s):
                return await call()
        except AskError as error:
            raise self.unusable(error) from error  # an answer like others: nothing is broken
        except (RedisError, OSError) as error:
            # What a connection still holds after an error is anybody's guess.
            await self._client.connection_pool.disconnect(inuse_connections=False)
            raise self.unusable(error) from error


def unusable(name: str, error: Exception, *, answer_s: float) -> LogUnavailable:
    """Put `error` into words for whoever runs the server `name` or wrote its URL."""
    match error:
        case AskError():
            return _elsewhere(name, error)
        case AuthenticationError():
            why = f"does not let us in: {error}; check USER and PASSWORD in the log's URL"
        case NoPermissionError():
            why = (
                f"does not let us in: {_said(error)}; the account lacks a right that the log needs"
            )
        case InvalidResponse():
            why = "answers, but is no Redis or Valkey"
        case ResponseError():
            why = f"refuses: {_said(error)}"
        case TimeoutError() | RedisTimeoutError():
            why = f"does not answer within {answer_s:g} s"
        case _:
            why = _why_no_tls(error) or f"cannot be reached: {error}"
    return LogUnavailable(f"{name} {why}")


def _said(error: ResponseError) -> str:
    """Return the server's own words: the library adds a command, which differs each time."""
    found = _OF_A_TRANSACTION.fullmatch(str(error))
    return found[1] if found else str(error)


def _elsewhere(name: str, error: AskError) -> Elsewhere:
    said: Any = error  # whose fields have no types
    moved = isinstance(error, MovedError) and said.host
    why = (
        f"hands a slot over: {error}"
        if "+cluster://" in name
        else f"is a node of a cluster; write redis+cluster:// for it: {error}"
    )
    return Elsewhere(f"{name} {why}", (str(said.host), int(said.port)) if moved else None)


class _Pool(redis.ConnectionPool):
    """One TLS context for all connections: each would stop to read the system's CAs again."""

    tls: Any = None

    def make_connection(self) -> redis.Connection:
        connection: Any = super().make_connection()  # pyright: ignore[reportUnknownMemberType]
        if self.tls is not None:
            connection.ssl_context = self.tls
        return connection


def _tls(name: str, connection: redis.SSLConnection) -> object:
    """Read certificates and key at once, not at the first connection."""
    context: Any = connection.ssl_context  # without types
    try:
        context.get()
    except (ssl.SSLError, OSError) as error:
        raise ValueError(
            f"{name}: ssl_ca_certs, ssl_certfile and ssl_keyfile must be files in PEM, "
            f"key and certificate of a pair: {error}"
        ) from None
    return context


def _why_no_tls(error: Exception) -> str | None:
    """Say what keeps a connection from being made safe; None: it is not that."""
    for each in _causes(error):
        match each:
            case ssl.SSLCertVerificationError():
                said = each.verify_message
                if "mismatch" in said:
                    return (
                        f"shows a certificate for another host; write a HOST that it names: {said}"
                    )
                return (
                    "shows a certificate that is not trusted here; "
                    f"name its CA's file by ?ssl_ca_certs=FILE: {said}"
                )
            case ssl.SSLError():
                return f"agrees on no TLS with us: {each.reason or each}; is its port one for TLS?"
            case _:
                continue
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
