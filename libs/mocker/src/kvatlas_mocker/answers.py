"""Writes the answers of the two generation endpoints, in the form that vLLM gives them.

A stream has one chunk per token; the last one has the finish reason. Then comes, if asked for, one
chunk with the usage and no choices, and then `[DONE]`.
"""

import secrets
import time
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from kvatlas_mocker.generation import Generation

DONE = b"data: [DONE]\n\n"


class Answer(ABC):
    """Writes one answer. The subclasses write the forms of the two endpoints.

    Args:
        generation: the request.
        prompt: the prompt's token ids, for `return_token_ids`.
        id_prefix: begin of the answer's id.
        kind: type of the answer's objects.
    """

    def __init__(
        self, generation: Generation, prompt: list[int] | None, *, id_prefix: str, kind: str
    ) -> None:
        self._generation = generation
        self._prompt = prompt
        self._head: dict[str, Any] = {
            "id": f"{id_prefix}-{secrets.token_hex(16)}",
            "object": kind,
            "created": int(time.time()),
            "model": generation.model,
        }

    def opening(self) -> bytes:
        """The begin of a stream, sent with its first token."""
        return b""

    @abstractmethod
    def chunk(self, text: str, token: int, finish_reason: str | None) -> bytes:
        """The event of a stream for one token."""

    def closing(self, usage: dict[str, Any]) -> bytes:
        """The end of a stream: the usage, if asked for, and the mark of the end."""
        if not self._generation.include_usage:
            return DONE
        return _event({**self._head, "choices": [], "usage": usage}) + DONE

    @abstractmethod
    def whole(self, text: str, tokens: list[int], usage: dict[str, Any]) -> bytes:
        """The whole body of an unstreamed answer."""


def usage_object(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """Return the `usage` of an answer, in OpenAI's form."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


class CompletionAnswer(Answer):
    """`text_completion`."""

    def __init__(self, generation: Generation, prompt: list[int] | None) -> None:
        super().__init__(generation, prompt, id_prefix="cmpl", kind="text_completion")
        self._begun = False

    def chunk(self, text: str, token: int, finish_reason: str | None) -> bytes:
        """One token's event; the first one has the prompt's ids if asked for."""
        choice = self._choice(text, finish_reason)
        if self._generation.return_token_ids:
            choice["prompt_token_ids"] = None if self._begun else self._prompt
            choice["token_ids"] = [token]
        self._begun = True
        return _event({**self._head, "choices": [choice], "usage": None})

    def whole(self, text: str, tokens: list[int], usage: dict[str, Any]) -> bytes:
        """The body."""
        choice = self._choice(text, self._generation.finish_reason)
        if self._generation.return_token_ids:
            choice["prompt_token_ids"] = self._prompt
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


class ChatAnswer(Answer):
    """`chat.completion` and `chat.completion.chunk`."""

    def __init__(self, generation: Generation, prompt: list[int] | None) -> None:
        kind = "chat.completion.chunk" if generation.stream else "chat.completion"
        super().__init__(generation, prompt, id_prefix="chatcmpl", kind=kind)

    def opening(self) -> bytes:
        """The event with the role, and with the prompt's ids if asked for."""
        role = {"role": "assistant", "content": ""}
        document: dict[str, Any] = {
            **self._head,
            "choices": [self._choice("delta", role, None)],
        }
        if self._generation.return_token_ids:
            document["prompt_token_ids"] = self._prompt
        return _event(document)

    def chunk(self, text: str, token: int, finish_reason: str | None) -> bytes:
        """One token."""
        choice = self._choice("delta", {"content": text}, finish_reason)
        if self._generation.return_token_ids:
            choice["token_ids"] = [token]
        return _event({**self._head, "choices": [choice]})

    def whole(self, text: str, tokens: list[int], usage: dict[str, Any]) -> bytes:
        """The body."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": []}
        choice = self._choice("message", message, self._generation.finish_reason)
        choice["stop_reason"] = None
        document: dict[str, Any] = {**self._head, "choices": [choice], "usage": usage}
        if self._generation.return_token_ids:
            choice["token_ids"] = tokens
            document["prompt_token_ids"] = self._prompt
        return msgspec.json.encode(document)

    @staticmethod
    def _choice(what: str, said: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, what: said, "logprobs": None, "finish_reason": finish_reason}
