"""Errors in the forms that the clients of OpenAI and of Anthropic expect.

A message is written for the client, so it never contains an engine's address.
"""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from kvatlas_frontend.api.reasons import Refusal

ErrorForm: TypeAlias = Literal["openai", "anthropic"]

# https://docs.claude.com/en/api/errors
_ANTHROPIC_STATUSES: Final = {502: 500, 503: 529}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


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

    def status_in(self, form: ErrorForm) -> int:
        """The status; Anthropic's API has 529 for an overload, and one status for other failures."""
        return (
            _ANTHROPIC_STATUSES.get(self.status, self.status)
            if _is_anthropic(form)
            else self.status
        )

    def body_in(self, form: ErrorForm) -> bytes:
        """The JSON body.

        `{"error": {"message", "type", "param", "code"}}`, or in Anthropic's form
        `{"type": "error", "error": {"type", "message"}}`.
        """
        if _is_anthropic(form):
            kind = _ANTHROPIC_TYPES.get(self.status_in(form), "invalid_request_error")
            error = {"type": kind, "message": str(self)}
            return msgspec.json.encode({"type": "error", "error": error})
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


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


def _is_anthropic(form: ErrorForm) -> bool:
    return form == "anthropic"
