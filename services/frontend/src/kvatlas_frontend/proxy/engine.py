"""One attempt on one engine, up to the first byte of its answer.

What fails here has cost the client nothing yet and may be tried elsewhere.
"""

import io
from enum import Enum
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

_RAW_BODY_BYTES_MAX: Final = 512 * 1024  # aiohttp wants a larger body as a file
_ERROR_BODY_BYTES_MAX: Final = 64 * 1024
_REDIRECT: Final = 300
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500


class Failure(Enum):
    """Why an attempt gave no answer; a metric's label."""

    CONNECT = "connect"  # nobody listens, or not in time
    DIED = "died"  # the connection ended before the first byte
    STATUS = "status_5xx"  # the engine says that it failed
    PROTOCOL = "protocol"  # not an answer: a redirect, or not HTTP


class AttemptError(Exception):
    """An engine gave no answer. The text is for logs: it may hold the engine's address."""

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure


class Answer:
    """An engine's answer whose first bytes have arrived. `close` it, whatever happens.

    Closing before the end of the body ends the connection, and with it the engine's work.
    """

    __slots__ = (
        "_response",
        "content",
        "ends_by_itself",
        "first",
        "headers",
        "is_stream",
        "status",
    )

    def __init__(self, response: aiohttp.ClientResponse, first: bytes) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers
        self.content = response.content
        self.first = first
        self.is_stream = response.headers.get("Content-Type", "").startswith("text/event-stream")
        # Otherwise the connection's end is the body's, and an engine that dies looks like one that
        # has finished.
        self.ends_by_itself = (
            "Content-Length" in response.headers or "Transfer-Encoding" in response.headers
        )

    def close(self) -> None:
        """Give the connection back if the body has ended, end it otherwise."""
        if self.content.at_eof():
            self._response.release()
        else:
            self._response.close()


def open_session(*, connect_timeout_s: float) -> aiohttp.ClientSession:
    """The session for all engines: no bound on an answer's time, none on the number of them."""
    connector = aiohttp.TCPConnector(
        limit=0,
        # Engines' servers (uvicorn) close an idle connection after 5 s; we do before they do.
        keepalive_timeout=4.0,
        use_dns_cache=True,
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(
            total=None, connect=None, sock_connect=connect_timeout_s, sock_read=None
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept-Encoding", "User-Agent"),
    )


async def attempt(
    session: aiohttp.ClientSession, url: URL, headers: CIMultiDict[str], body: bytes
) -> Answer:
    """Send a request and wait for the first byte of the answer's body.

    Raises:
        AttemptError: there was none.
    """
    data = body if len(body) <= _RAW_BODY_BYTES_MAX else io.BytesIO(body)
    try:
        response = await session.post(url, data=data, headers=headers, allow_redirects=False)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise AttemptError(Failure.CONNECT, str(error)) from None
    except (aiohttp.ClientConnectionError, OSError) as error:
        raise AttemptError(Failure.DIED, str(error)) from None
    except aiohttp.ClientError as error:
        raise AttemptError(Failure.PROTOCOL, str(error)) from None
    status = response.status
    if status >= _SERVER_ERROR or _REDIRECT <= status < _CLIENT_ERROR:
        response.close()
        failure = Failure.STATUS if status >= _SERVER_ERROR else Failure.PROTOCOL
        raise AttemptError(failure, f"status {status}")
    try:
        first = await response.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        response.close()
        raise AttemptError(Failure.DIED, str(error)) from None
    except BaseException:
        response.close()
        raise
    if not first and status < _CLIENT_ERROR:
        response.close()
        raise AttemptError(Failure.DIED, "an answer without a body")
    return Answer(response, first)


async def read_error(answer: Answer, url: URL) -> bytes | None:
    """The body of an engine's refusal; None where it is too large or speaks of the engine's address."""
    parts = [answer.first]
    size = len(answer.first)
    try:
        while chunk := await answer.content.readany():
            size += len(chunk)
            if size > _ERROR_BODY_BYTES_MAX:
                return None
            parts.append(chunk)
    except (aiohttp.ClientError, OSError):
        return None
    body = b"".join(parts)
    return None if speaks_of(url, body) else body


def speaks_of(url: URL, body: bytes) -> bool:
    """Whether a text holds the address of `url`.

    An address of numbers or with a domain counts wherever it stands. A bare name, as `vllm`, is a
    word as well: it counts where it is written as an address.
    """
    host = url.raw_host or ""
    if "." in host or ":" in host:
        return host.encode() in body
    return any(text.encode() in body for text in (f"{host}:{url.port}", f"//{host}"))
