"""One Redis or Valkey server, as the log's writer and reader talk to it.

Everything that can go wrong with it becomes `LogUnavailable` here, with the server's address and
never with its credentials. Whether to try again is for the caller to say, so the client library's
own retries are off: they would stall a caller that has better things to do, and repeat appends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from kvatlas_events.log import LogUnavailable

Command = Sequence[str | bytes | int]
Reply = Any
"""What the client library makes of a reply: its shape is the command's."""

_CONNECT_S = 5.0
_ANSWER_S = 10.0
_CALLS_MAX = 16
"""At once, each on a connection of its own: a writer can be shared by a thousand deliveries."""
_PORT = 6379
_TLS_OPTIONS = (
    *("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
    *("ssl_cert_reqs", "ssl_check_hostname"),
)


class RedisServer:
    """A lazily connected server; several tasks may call it.

    Raises:
        ValueError: the URL cannot be used.
    """

    def __init__(self, url: str, *, answer_s: float = _ANSWER_S) -> None:
        self.name = _name_without_credentials(url)
        self.connections = 0
        """How many have been made: the library replaces a broken one in silence, but behind a new
        one there may be a server that has been started again."""
        self._answer_s = answer_s
        self._turn = asyncio.Semaphore(_CALLS_MAX)
        try:
            # The library's own types are unknown in part.
            self._client: Any = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
                url,
                protocol=2,  # replies of one shape from every release since 6.2
                socket_connect_timeout=_CONNECT_S,
                socket_timeout=None,  # each call brings its own
                socket_keepalive=True,
                retry=Retry(NoBackoff(), 0),
                redis_connect_func=self._connected,
            )
            self._client.connection_pool.make_connection()  # checks the rest of the URL
        except (ValueError, TypeError, RedisError):
            # The library's text may quote a part of the URL that is a password.
            raise ValueError(f"{self.name}: a part of this URL cannot be used") from None

    async def call(self, *command: str | bytes | int, wait_s: float = 0.0) -> Reply:
        """Return the reply to one command that the server may hold back for `wait_s`."""
        return await self._guarded(lambda: self._client.execute_command(*command), wait_s)

    async def call_together(self, commands: Sequence[Command], *, atomic: bool) -> list[Reply]:
        """Return the replies to `commands`, sent at once; a command's own error is its reply."""
        pipeline = self._client.pipeline(transaction=atomic)
        for command in commands:
            pipeline.execute_command(*command)
        return await self._guarded(lambda: pipeline.execute(raise_on_error=False), 0.0)

    def unusable(self, error: Exception) -> LogUnavailable:
        """Put `error` into words for whoever runs the server or wrote its URL."""
        match error:
            case AuthenticationError() | NoPermissionError():
                why = f"does not let us in: {error}"
            case InvalidResponse():
                why = "answers, but is no Redis or Valkey"
            case ResponseError():
                why = f"refuses: {error}"
            case TimeoutError():
                why = f"does not answer within {self._answer_s:g} s"
            case _:
                why = f"cannot be reached: {error}"
        return LogUnavailable(f"{self.name} {why}")

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
        except (RedisError, OSError) as error:
            # What a connection still holds after an error is anybody's guess.
            await self._client.connection_pool.disconnect(inuse_connections=False)
            raise self.unusable(error) from error


def _name_without_credentials(url: str) -> str:
    """Return `scheme://host:port/db` of a URL whose every other part may be a secret."""
    try:
        parts = urlsplit(url)
        host, port, options = parts.hostname, parts.port, parse_qs(parts.query)
    except ValueError:
        raise ValueError(
            "a redis URL whose host and port cannot be told apart; write "
            "redis://[USER:PASSWORD@]HOST:PORT[/DB], with %XX for special characters in PASSWORD"
        ) from None
    if not host:
        raise ValueError(f"{parts.scheme}:// without a host; write {parts.scheme}://HOST:PORT")
    known = _TLS_OPTIONS if parts.scheme == "rediss" else ()
    if wrong := sorted(set(options).difference(known)):
        raise ValueError(
            f"{parts.scheme}://{host}: unknown option {wrong[0]}; "
            f"{', '.join(_TLS_OPTIONS)} are options of rediss://"
        )
    if ":" in host:
        host = f"[{host}]"
    database = parts.path if parts.path.strip("/").isdecimal() else ""
    return f"{parts.scheme}://{host}:{port or _PORT}{database}"
