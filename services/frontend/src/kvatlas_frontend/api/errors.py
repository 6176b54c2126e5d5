"""Errors as OpenAI clients expect them, made in one place.

A message here never holds an engine's address: it is written for a client, who must not learn it.
"""

from typing import Final

import msgspec

from kvatlas_frontend.api.reasons import Refusal


class ApiError(Exception):
    """A request that gets an error object instead of an engine's answer."""

    def __init__(
        self, status: int, message: str, *, kind: str, code: str, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param

    def body(self) -> bytes:
        """The JSON body, `{"error": {"message", "type", "param", "code"}}`."""
        return error_body(str(self), kind=self.kind, code=self.code, param=self.param)


class RefusedError(ApiError):
    """The request is refused before any engine is asked; counted by `reason`."""

    def __init__(
        self, reason: Refusal, status: int, message: str, *, param: str | None = None
    ) -> None:
        kind = "not_found_error" if status == _NOT_FOUND else "invalid_request_error"
        if status >= _SERVER_ERROR:
            kind = "service_unavailable_error"
        super().__init__(status, message, kind=kind, code=reason.value, param=param)
        self.reason = reason


_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> bytes:
    """An OpenAI error object as JSON."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )


def sse_error(message: str, *, kind: str, code: str) -> bytes:
    """An error event and the end marker, for a stream that cannot go on."""
    return b"data: " + error_body(message, kind=kind, code=code) + b"\n\ndata: [DONE]\n\n"
