"""Turns a parsed prompt into token ids; long ones on threads, so that the event loop stays free.

text prompt ──▶ local encoder ─────────────┐
token ids ─────────────────────────────────┼─▶ PromptTokens
conversation ─▶ template ─▶ local encoder ─┤
     └─ no template, or `--tokenizer engine` ─▶ an engine's /tokenize
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvatlas_frontend.api.body import ChatPrompt, OpaquePrompt, Prompt, TextPrompt, TokenPrompt
from kvatlas_frontend.tokens.chat_template import ChatTemplate, RenderError, is_text_only
from kvatlas_frontend.tokens.encoder import Encoder


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt's token ids, uint32[n]; `whole` unless they end before a multimodal item."""

    ids: NDArray[np.uint32]
    whole: bool


class TokensUnavailableError(Exception):
    """The prompt cannot be tokenized; it is routed by load."""


class EngineTokenizer(Protocol):
    """Asks an engine. Raises TokensUnavailableError if none answers in time."""

    async def tokenize(self, prompt: TextPrompt | ChatPrompt, model: str) -> NDArray[np.uint32]:
        """The ids of a prompt, uint32[n]."""
        ...


class PromptTokenizer:
    """Tokenizes prompts. Owns a pool of threads, which `close` ends."""

    def __init__(
        self,
        *,
        encoder: Encoder | None,
        template: ChatTemplate | None,
        engine: EngineTokenizer,
        threads: int,
    ) -> None:
        self._encoder = encoder
        self._template = template
        self._engine = engine
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenize")

    @property
    def name(self) -> str:
        """Name of the tokenizer in use, for logs and metrics."""
        return self._encoder.name if self._encoder is not None else "engine"

    def close(self) -> None:
        """End the threads; the result of a text still being tokenized is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def tokens(self, prompt: Prompt, model: str) -> PromptTokens:
        """The token ids of `prompt`; `model` is the model's name on the engines.

        Raises:
            TokensUnavailableError: the prompt cannot be tokenized. It is routed by load, and the
                engine judges it.
        """
        if isinstance(prompt, TokenPrompt):
            return _kept(prompt.tokens, prompt.keep_last, whole=True)
        if isinstance(prompt, OpaquePrompt):
            return PromptTokens(np.empty(0, dtype=np.uint32), whole=False)
        if isinstance(prompt, TextPrompt):
            if self._encoder is None:
                return await self._ask(prompt, model)
            ids = await self._encode(self._encoder, prompt.text, special=prompt.add_special_tokens)
            return _kept(ids, prompt.keep_last, whole=True)
        if self._encoder is None or self._template is None or "chat_template" in prompt.options:
            return await self._ask(prompt, model)
        return await self._render_and_encode(self._encoder, self._template, prompt)

    async def _render_and_encode(
        self, encoder: Encoder, template: ChatTemplate, prompt: ChatPrompt
    ) -> PromptTokens:
        if prompt.options.get("continue_final_message"):
            # How an engine renders an unfinished last message depends on its version.
            raise TokensUnavailableError("only the engine can render continue_final_message")

        def work() -> tuple[NDArray[np.uint32], bool]:
            text, whole = template.render(prompt.messages, prompt.options)
            return encoder.encode(text, add_special_tokens=prompt.add_special_tokens), whole

        try:
            if prompt.body_bytes <= encoder.inline_chars_max:
                ids, whole = work()
            else:
                ids, whole = await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except RenderError as error:
            raise TokensUnavailableError(str(error)) from None
        if not whole:
            # The last token before an item may have merged with the text that follows.
            return PromptTokens(ids[:-1], whole=False)
        return _kept(ids, prompt.keep_last, whole=True)

    async def _encode(self, encoder: Encoder, text: str, *, special: bool) -> NDArray[np.uint32]:
        if len(text) <= encoder.inline_chars_max:
            return encoder.encode(text, add_special_tokens=special)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, lambda: encoder.encode(text, add_special_tokens=special)
        )

    async def _ask(self, prompt: TextPrompt | ChatPrompt, model: str) -> PromptTokens:
        ids = await self._engine.tokenize(prompt, model)
        whole = isinstance(prompt, TextPrompt) or is_text_only(prompt.messages)
        return _kept(ids, prompt.keep_last, whole=whole)


def _kept(ids: NDArray[np.uint32], keep_last: int | None, *, whole: bool) -> PromptTokens:
    return PromptTokens(ids if keep_last is None else ids[-keep_last:], whole=whole)
