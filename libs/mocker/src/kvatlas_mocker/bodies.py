"""The request bodies that clients send, and vLLM's error object.

Other fields are accepted and have no effect: sampling parameters change nothing in a mock.
"""

from typing import Any, TypeVar

import msgspec


class ApiError(Exception):
    """A request that cannot be served: an HTTP status and vLLM's error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self._body = {"message": message, "type": kind, "param": param, "code": status}

    def body(self) -> bytes:
        """The JSON of the answer."""
        return msgspec.json.encode({"error": self._body})


class StreamOptions(msgspec.Struct):
    """The fields of `stream_options` in a request that are read."""

    include_usage: bool = False


class GenerationBody(msgspec.Struct, kw_only=True):
    """The fields that both generation endpoints take."""

    model: str | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    n: int | None = 1
    seed: int | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """`POST /v1/completions`; the prompt is parsed by its first character."""

    prompt: msgspec.Raw = msgspec.Raw(b"")
    add_special_tokens: bool = True
    echo: bool = False
    logprobs: int | None = None


class ChatBody(GenerationBody, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """`POST /tokenize`: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


B = TypeVar("B")


def parse(body: bytes, shape: type[B]) -> B:
    """Read a JSON body.

    Raises:
        ApiError: 400, naming the field that does not fit `shape`.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"the request's body cannot be read: {error}") from None
