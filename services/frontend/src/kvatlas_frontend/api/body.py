"""Reads the fields that routing needs from a request's body; the body is forwarded unchanged.

The engine judges all other fields, so a new engine option needs no change here.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvatlas_frontend.api.errors import RefusedError
from kvatlas_frontend.api.reasons import Reason, Refusal, Unrendered
from kvatlas_frontend.tokens.ids import token_array

Route: TypeAlias = Literal["completions", "chat"]

_BAD_REQUEST: Final = 400


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A completion's text."""

    text: str
    add_special_tokens: bool
    keep_last: int | None  # truncate_prompt_tokens: the engine keeps this many, from the end


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A completion's token ids, uint32."""

    tokens: NDArray[np.uint32]
    keep_last: int | None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, to be rendered by the model's template."""

    messages: list[dict[str, Any]]
    options: dict[str, Any]  # the body's fields that rendering depends on
    add_special_tokens: bool
    keep_last: int | None
    body_bytes: int = field(default=0, compare=False)  # of the request: bounds the work on it


@dataclass(frozen=True, slots=True)
class OpaquePrompt:
    """A prompt whose token ids are unknown outside the engine: routed without a match."""

    reason: Reason = Reason.NO_MATCH  # for x-kvatlas-reason
    why: Unrendered | None = None  # with ENGINE_PROMPT


Prompt: TypeAlias = TextPrompt | TokenPrompt | ChatPrompt | OpaquePrompt


class ParsedBody:
    """The facts about a request that routing needs. The prompt may be parsed only when it is asked for."""

    __slots__ = (
        "_parse", "_prompt", "_user", "batch", "cache_salt", "follows", "is_stored", "model", "stream",
    )  # fmt: skip

    def __init__(
        self,
        model: str | None,
        *,
        stream: bool,
        cache_salt: str | None,
        batch: bool,
        prompt: Prompt | None = None,
        follows: str | None = None,
        is_stored: bool = False,
        user: str = "",
        parse: Callable[[], "ParsedBody"] | None = None,
    ) -> None:
        """Either `prompt` (and `user`), or `parse`, which parses a body for both."""
        self.model = model
        self.stream = stream
        self.cache_salt = cache_salt
        self.batch = batch  # several prompts: routed by the first, usage not compared
        self.follows = follows  # id of a response that one engine has: the request goes there
        self.is_stored = is_stored  # the answer has an id that later requests may follow
        self._prompt = prompt
        self._user = user
        self._parse = parse

    @property
    def prompt(self) -> Prompt:
        """The prompt. Where the data plane has read it, the first use parses the body again."""
        self._fill()
        assert self._prompt is not None  # noqa: S101 - given or parsed
        return self._prompt

    @property
    def user(self) -> str:
        """The client's own name of its user."""
        self._fill()
        return self._user

    @property
    def opaque(self) -> OpaquePrompt | None:
        """The prompt if it is an opaque one; this parses nothing."""
        return self._prompt if isinstance(self._prompt, OpaquePrompt) else None

    def _fill(self) -> None:
        if self._parse is not None:
            parsed = self._parse()
            self._prompt, self._user, self._parse = parsed.prompt, parsed.user, None


class _Common(msgspec.Struct):
    model: str | None = None
    stream: bool | int | None = None
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    user: Any = None


class _Completion(_Common):
    prompt: str | list[Any] | None = None
    prompt_embeds: Any = None


class _Chat(_Common):
    messages: list[dict[str, Any]] | None = None
    tools: Any = None
    documents: Any = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


_decode_completion = msgspec.json.Decoder(_Completion).decode
_decode_chat = msgspec.json.Decoder(_Chat).decode

_CHAT_OPTIONS = (
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)


def parse_body(route: Route, body: bytes) -> ParsedBody:
    """Read a request's body.

    A list of prompts is one request to one worker: it is routed by its first prompt, as vLLM
    answers it in one response.

    Raises:
        RefusedError: 400; not JSON, a field of the wrong type, or no prompt.
    """
    with decoding():
        if route == "completions":
            return _completion(_decode_completion(body))
        return _chat(_decode_chat(body), len(body))


@contextmanager
def decoding() -> Generator[None]:
    """Turn what `msgspec` raises for a body into a refusal.

    Raises:
        RefusedError: 400; not JSON, or a field of the wrong type.
    """
    try:
        yield
    except msgspec.ValidationError as error:
        raise RefusedError(
            Refusal.BAD_FIELD, _BAD_REQUEST, f"The request body is invalid: {error}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RefusedError(
            Refusal.NOT_JSON, _BAD_REQUEST, "The request body is not valid JSON"
        ) from None


def _completion(body: _Completion) -> ParsedBody:
    special = body.add_special_tokens is not False
    keep_last = _keep_last(body)
    prompt = body.prompt
    if prompt is None:
        if body.prompt_embeds is None:
            raise _no_prompt("prompt")
        return _parsed(body, OpaquePrompt())
    if not prompt:
        raise _no_prompt("prompt")
    if isinstance(prompt, str):
        return _parsed(body, TextPrompt(prompt, special, keep_last))
    first: object = prompt[0]
    if isinstance(first, int):
        return _parsed(body, TokenPrompt(_tokens(prompt), keep_last))
    if isinstance(first, str):
        return _parsed(body, TextPrompt(first, special, keep_last), batch=True)
    if isinstance(first, list):
        ids = cast("list[Any]", first)
        if not ids:
            raise _no_prompt("prompt")
        return _parsed(body, TokenPrompt(_tokens(ids), keep_last), batch=True)
    raise _bad_prompt()


def _chat(body: _Chat, body_bytes: int) -> ParsedBody:
    if not body.messages:
        raise _no_prompt("messages")
    options = {name: value for name in _CHAT_OPTIONS if (value := getattr(body, name)) is not None}
    special = body.add_special_tokens is True
    keep_last = _keep_last(body)
    return _parsed(body, ChatPrompt(body.messages, options, special, keep_last, body_bytes))


def _parsed(body: _Common, prompt: Prompt, *, batch: bool = False) -> ParsedBody:
    return ParsedBody(
        model=body.model,
        stream=bool(body.stream),
        cache_salt=body.cache_salt,
        prompt=prompt,
        batch=batch,
        user=user_name(body.user),
    )


def user_name(given: object) -> str:
    """The client's name of its user; "" if there is none, and for anything but text."""
    return given if isinstance(given, str) else ""


def _keep_last(body: _Common) -> int | None:
    """The limit on prompt tokens; None for zero or less, which means the engine's own limit."""
    limit = body.truncate_prompt_tokens
    return limit if limit is not None and limit > 0 else None


def _tokens(ids: list[Any]) -> NDArray[np.uint32]:
    try:
        return token_array(ids)
    except ValueError:
        raise _bad_prompt() from None


def _no_prompt(param: str) -> RefusedError:
    return RefusedError(
        Refusal.NO_PROMPT, _BAD_REQUEST, f"The request has no prompt: '{param}' is empty or missing",
        param=param,
    )  # fmt: skip


def _bad_prompt() -> RefusedError:
    return RefusedError(
        Refusal.BAD_FIELD,
        _BAD_REQUEST,
        "'prompt' must be a string, a list of token ids, or a list of either",
        param="prompt",
    )
