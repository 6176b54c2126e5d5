"""The answers to generations, in the two dialects of the OpenAI API as vLLM speaks them.

A stream is one chunk a token, the last with the reason of the end; then, if asked for, one
chunk without choices that holds the usage; then `[DONE]`.
"""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from kvatlas_mocker.generation import Generation

DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """One answer being made, in one dialect."""

    def opening(self) -> bytes:
        """What a stream begins with, sent with its first token."""
        ...

    def chunk(self, text: str, token: int, finish_reason: str | None) -> bytes:
        """A stream's event for one token."""
        ...

    def closing(self, usage: dict[str, Any]) -> bytes:
        """What a stream ends with."""
        ...

    def whole(self, text: str, tokens: list[int], usage: dict[str, Any]) -> bytes:
        """The body where no stream was asked for."""
        ...


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def _created() -> int:
    return int(time.time())


@dataclass(slots=True)
class _Common:
    order: Generation
    prompt: list[int] | None  # for `return_token_ids`
    created: int = field(default_factory=_created)
    begun: bool = False

    def _closing(self, head: dict[str, Any], usage: dict[str, Any]) -> bytes:
        if not self.order.include_usage:
            return DONE
        return _event({**head, "choices": [], "usage": usage}) + DONE


class CompletionAnswer(_Common):
    """`text_completion`."""

    __slots__ = ("_head",)

    def __init__(self, order: Generation, prompt: list[int] | None) -> None:
        super().__init__(order, prompt)
        self._head = {
            "id": f"cmpl-{secrets.token_hex(16)}",
            "object": "text_completion",
            "created": self.created,
            "model": order.model,
        }

    def opening(self) -> bytes:
        """Nothing: the first token's chunk is the first."""
        return b""

    def chunk(self, text: str, token: int, finish_reason: str | None) -> bytes:
        """One token; the first one carries the prompt's ids if asked for."""
        choice = self._choice(text, finish_reason)
        if self.order.return_token_ids:
            choice["prompt_token_ids"] = None if self.begun else self.prompt
            choice["token_ids"] = [token]
        self.begun = True
        return _event({**self._head, "choices": [choice], "usage": None})

    def closing(self, usage: dict[str, Any]) -> bytes:
        """Usage, if asked for, and the end."""
        return self._closing(self._head, usage)

    def whole(self, text: str, tokens: list[int], usage: dict[str, Any]) -> bytes:
        """The body."""
        choice = self._choice(text, self.order.finish_reason)
        if self.order.return_token_ids:
            choice["prompt_token_ids"] = self.prompt
            choice["token_ids"] = tokens
        return msgspec.json.encode({**self._head, "choices": [choice], "usage": usage})

    @staticmethod
    def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
        return {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
        }


class ChatAnswer(_Common):
    """`chat.completion` and `chat.completion.chunk`."""

    __slots__ = ("_head",)

    def __init__(self, order: Generation, prompt: list[int] | None) -> None:
        super().__init__(order, prompt)
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(16)}",
            "object": "chat.completion.chunk" if order.stream else "chat.completion",
            "created": self.created,
            "model": order.model,
        }

    def opening(self) -> bytes:
        """The role, with the prompt's ids if asked for."""
        role = {"role": "assistant", "content": ""}
        document: dict[str, Any] = {**self._head}
        document["choices"] = [self._choice("delta", role, None)]
        if self.order.return_token_ids:
            document["prompt_token_ids"] = self.prompt
        return _event(document)

    def chunk(self, text: str, token: int, finish_reason: str | None) -> bytes:
        """One token."""
        choice = self._choice("delta", {"content": text}, finish_reason)
        if self.order.return_token_ids:
            choice["token_ids"] = [token]
        return _event({**self._head, "choices": [choice]})

    def closing(self, usage: dict[str, Any]) -> bytes:
        """Usage, if asked for, and the end."""
        return self._closing(self._head, usage)

    def whole(self, text: str, tokens: list[int], usage: dict[str, Any]) -> bytes:
        """The body."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": []}
        choice = self._choice("message", message, self.order.finish_reason)
        choice["stop_reason"] = None
        document: dict[str, Any] = {**self._head, "choices": [choice], "usage": usage}
        if self.order.return_token_ids:
            choice["token_ids"] = tokens
            document["prompt_token_ids"] = self.prompt
        return msgspec.json.encode(document)

    @staticmethod
    def _choice(what: str, said: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, what: said, "logprobs": None, "finish_reason": finish_reason}
