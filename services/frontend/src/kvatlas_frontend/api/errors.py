"""Errors in the form that OpenAI clients expect.

A message is written for the client, so it never contains an engine's address.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from kvatlas_frontend.api.reasons import Refusal


class ApiError(Exception):
    """A request is answered with an error object instead of an engine's answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        code: str,
        param: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> bytes:
        """The JSON body, `{"error": {"message", "type", "param", "code"}}`."""
        return error_body(str(self), kind=self.kind, code=self.code, param=self.param)


class RefusedError(ApiError):
    """The request is refused before any engine is asked; counted by `reason`."""

    def __init__(
        self,
        reason: Refusal,
        status: int,
        message: str,
        *,
        param: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        kind = "not_found_error" if status == _NOT_FOUND else "invalid_request_error"
        if status >= _SERVER_ERROR:
            kind = "service_unavailable_error"
        super().__init__(
            status, message, kind=kind, code=reason.value, param=param, headers=headers
        )
        self.reason = reason


_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> bytes:
    """An OpenAI error object as JSON."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )
