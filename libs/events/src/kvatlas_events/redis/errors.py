"""Turns what goes wrong with a Redis server into `LogUnavailable`, in words for an operator."""

import re
import ssl
from collections.abc import Iterator
from typing import Any

from redis.exceptions import (
    AskError,
    AuthenticationError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from kvatlas_events.log import LogUnavailable
from kvatlas_events.redis.url import Address

_TRANSACTION_ERROR = re.compile(
    r"Command # \d+ \(.*\) of pipeline caused error: \(['\"](.*)['\"],\)", re.DOTALL
)


class SlotMoved(LogUnavailable):
    """The server is a node of a cluster, and another node has the slot or is getting it.

    `address`: the node that has the slot; None while it is being moved.
    """

    def __init__(self, why: str, address: Address | None) -> None:
        super().__init__(why)
        self.address = address


def unavailable(name: str, error: Exception, *, answer_s: float) -> LogUnavailable:
    """Return `error` in words for the operator of the server `name` or the author of its URL."""
    match error:
        case AskError():
            return _slot_moved(name, error)
        case AuthenticationError():
            why = f"does not let us in: {error}; check USER and PASSWORD in the log's URL"
        case NoPermissionError():
            why = (
                f"does not let us in: {_server_text(error)}; "
                "the account lacks a right that the log needs"
            )
        case InvalidResponse():
            why = "answers, but is not Redis or Valkey"
        case ResponseError():
            why = f"refuses: {_server_text(error)}"
        case TimeoutError() | RedisTimeoutError():
            why = f"does not answer within {answer_s:g} s"
        case _:
            why = _tls_failure(error) or f"cannot be reached: {error}"
    return LogUnavailable(f"{name} {why}")


def _server_text(error: ResponseError) -> str:
    """Return the server's own text, without the command that the library puts before it."""
    found = _TRANSACTION_ERROR.fullmatch(str(error))
    return found[1] if found else str(error)


def _slot_moved(name: str, error: AskError) -> SlotMoved:
    untyped: Any = error  # its fields have no types
    moved = isinstance(error, MovedError) and untyped.host
    why = (
        f"hands a slot over: {error}"
        if "+cluster://" in name
        else f"is a node of a cluster; write redis+cluster:// for it: {error}"
    )
    return SlotMoved(f"{name} {why}", (str(untyped.host), int(untyped.port)) if moved else None)


def _tls_failure(error: Exception) -> str | None:
    """Return why the TLS handshake failed; None: `error` is about something else."""
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                reason = cause.verify_message
                if "mismatch" in reason:
                    return (
                        "shows a certificate for another host; "
                        f"write a HOST that it names: {reason}"
                    )
                return (
                    "shows a certificate that is not trusted here; "
                    f"name its CA's file by ?ssl_ca_certs=FILE: {reason}"
                )
            case ssl.SSLError():
                return (
                    f"agrees on no TLS with us: {cause.reason or cause}; is its port one for TLS?"
                )
            case _:
                continue
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
