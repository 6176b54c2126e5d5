"""Writes the answers of the generation endpoints, in the forms that vLLM gives them.

A stream has one chunk per token; a choice's last one has its finish reason. Then comes, if asked
for, one chunk with the usage and no choices, and then `[DONE]`.
"""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kvatlas_mocker.generation import FinishReason, Generation, Output
from kvatlas_mocker.logprobs import TokenText, chat_logprobs, completion_logprobs

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Said:
    """One token of one choice."""

    output: Output
    text: str
    token: int
    is_first: bool
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one request."""

    prompt: int
    completion: int
    cached: int

    def openai(self) -> dict[str, Any]:
        """`usage` of completions and chats."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Answer(ABC):
    """Writes one answer. The subclasses write the forms of the endpoints.

    Args:
        generation: the request.
        text: the tokenizer, for the texts of single tokens.
        id_prefix: begin of the answer's id.
        kind: type of the answer's objects.
    """

    def __init__(
        self, generation: Generation, text: TokenText, *, id_prefix: str, kind: str
    ) -> None:
        self._generation = generation
        self._text = text
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
    def chunk(self, said: Said) -> bytes:
        """The events of a stream for one token."""

    def closing(self, usage: Usage) -> bytes:
        """The end of a stream: the usage, if asked for, and the mark of the end."""
        if not self._generation.include_usage:
            return DONE
        return event({**self._head, "choices": [], "usage": usage.openai()}) + DONE

    @abstractmethod
    def whole(self, choices: Sequence[Sequence[Said]], usage: Usage) -> bytes:
        """The whole body of an unstreamed answer; `choices` has the tokens of each."""


def event(document: dict[str, Any]) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


class CompletionAnswer(Answer):
    """`text_completion`."""

    def __init__(self, generation: Generation, text: TokenText) -> None:
        super().__init__(generation, text, id_prefix="cmpl", kind="text_completion")
        self._offsets: dict[int, int] = {}  # characters so far, by choice

    def chunk(self, said: Said) -> bytes:
        """One token's event; a choice's first one has the prompt if asked for."""
        choice = self._choice([said])
        if self._generation.return_token_ids:
            if not said.is_first:
                choice["prompt_token_ids"] = None
            choice["token_ids"] = [said.token]
        return event({**self._head, "choices": [choice], "usage": None})

    def whole(self, choices: Sequence[Sequence[Said]], usage: Usage) -> bytes:
        """The body."""
        written: list[dict[str, Any]] = []
        for said in choices:
            choice = self._choice(said)
            if self._generation.return_token_ids:
                choice["token_ids"] = [each.token for each in said]
            written.append(choice)
        return msgspec.json.encode({**self._head, "choices": written, "usage": usage.openai()})

    def _choice(self, said: Sequence[Said]) -> dict[str, Any]:
        generation, output = self._generation, said[0].output
        texts = [] if generation.is_silent else [each.text for each in said]
        tokens = [] if generation.is_silent else [each.token for each in said]
        prompt = output.prompt.tolist() if said[0].is_first else []
        echoed = [self._text.decode([token]) for token in prompt] if generation.echo else []
        logprobs = None
        if generation.logprobs is not None:
            begin = self._offsets.get(output.index, 0)
            logprobs = completion_logprobs(
                self._text,
                [*echoed, *texts],
                [*(prompt if generation.echo else ()), *tokens],
                alternatives=generation.logprobs,
                begin=begin,
            )
            self._offsets[output.index] = begin + sum(map(len, (*echoed, *texts)))
        opening = self._text.decode(prompt) if generation.echo else ""
        choice: dict[str, Any] = {
            "index": output.index,
            "text": opening + "".join(texts),
            "logprobs": logprobs,
            "finish_reason": said[-1].finish_reason,
            "stop_reason": None,
        }
        if generation.return_token_ids:
            choice["prompt_token_ids"] = prompt
        return choice


class ChatAnswer(Answer):
    """`chat.completion` and `chat.completion.chunk`."""

    def __init__(self, generation: Generation, text: TokenText) -> None:
        kind = "chat.completion.chunk" if generation.stream else "chat.completion"
        super().__init__(generation, text, id_prefix="chatcmpl", kind=kind)

    def opening(self) -> bytes:
        """The events with the role, and with the prompt's ids if asked for."""
        events: list[bytes] = []
        for output in self._generation.outputs:
            role = {"role": "assistant", "content": ""}
            choice = {"index": output.index, "delta": role, "logprobs": None, "finish_reason": None}
            document: dict[str, Any] = {**self._head, "choices": [choice]}
            if self._generation.return_token_ids:
                document["prompt_token_ids"] = output.prompt.tolist()
            events.append(event(document))
        return b"".join(events)

    def chunk(self, said: Said) -> bytes:
        """One token: of the text, or of a call's arguments."""
        script = said.output.script
        if script is None or script.tool is None:
            delta: dict[str, Any] = {"content": said.text}
        elif said.is_first:
            call = tool_call(script.tool, said.text)
            delta = {"tool_calls": [{"index": 0, **call}]}
        else:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": said.text}}]}
        choice: dict[str, Any] = {
            "index": said.output.index,
            "delta": delta,
            "logprobs": self._logprobs([said]),
            "finish_reason": said.finish_reason,
        }
        if self._generation.return_token_ids:
            choice["token_ids"] = [said.token]
        return event({**self._head, "choices": [choice]})

    def whole(self, choices: Sequence[Sequence[Said]], usage: Usage) -> bytes:
        """The body."""
        document: dict[str, Any] = {
            **self._head,
            "choices": [self._choice(said) for said in choices],
            "usage": usage.openai(),
        }
        if self._generation.return_token_ids:
            document["prompt_token_ids"] = self._generation.prompts[0].tolist()
        return msgspec.json.encode(document)

    def _choice(self, said: Sequence[Said]) -> dict[str, Any]:
        text = "".join(each.text for each in said)
        script = said[0].output.script
        message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": []}
        if script is not None and script.tool is not None:
            message |= {"content": None, "tool_calls": [tool_call(script.tool, text)]}
        choice: dict[str, Any] = {
            "index": said[0].output.index,
            "message": message,
            "logprobs": self._logprobs(said),
            "finish_reason": said[-1].finish_reason,
            "stop_reason": None,
        }
        if self._generation.return_token_ids:
            choice["token_ids"] = [each.token for each in said]
        return choice

    def _logprobs(self, said: Sequence[Said]) -> dict[str, Any] | None:
        if self._generation.logprobs is None:
            return None
        return chat_logprobs(
            self._text,
            [(each.text, each.token) for each in said],
            alternatives=self._generation.logprobs,
        )


def tool_call(name: str, arguments: str) -> dict[str, Any]:
    """A tool call of a chat, with an id of its own."""
    return {
        "id": f"chatcmpl-tool-{secrets.token_hex(16)}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
