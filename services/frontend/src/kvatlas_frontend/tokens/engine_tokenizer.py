"""Asks an engine to tokenize a prompt: `POST /tokenize` of vLLM and SGLang."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from kvatlas_frontend.api.body import ChatPrompt, TextPrompt
from kvatlas_frontend.fleet.table import Fleet, Worker
from kvatlas_frontend.tokens.ids import token_array
from kvatlas_frontend.tokens.prompt_tokenizer import TokensUnavailableError

_ENGINES_ASKED_MAX = 2


class _Tokenized(msgspec.Struct):
    tokens: list[Any]


_decode = msgspec.json.Decoder(_Tokenized).decode


class HttpEngineTokenizer:
    """Asks one engine, and another if that one fails, all within one deadline."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        fleet: Fleet,
        *,
        deadline_s: float,
        rng: random.Random,
        now_s: Callable[[], float],
    ) -> None:
        self._session = session
        self._fleet = fleet
        self._deadline_s = deadline_s
        self._rng = rng
        self._now_s = now_s

    async def tokenize(self, prompt: TextPrompt | ChatPrompt, model: str) -> NDArray[np.uint32]:
        """The ids, uint32[n].

        Raises:
            TokensUnavailableError: no engine answered in time, or none could tokenize this prompt.
        """
        now_s = self._now_s()
        columns = self._fleet.columns
        able = [
            worker
            for worker in self._fleet
            if columns.present[worker.row] and columns.unreachable_until_s[worker.row] <= now_s
        ]
        asked = self._rng.sample(able, min(_ENGINES_ASKED_MAX, len(able)))
        body = msgspec.json.encode(_request_body(prompt, model))
        try:
            async with asyncio.timeout(self._deadline_s):
                for worker in asked:
                    ids = await self._ask(worker, body)
                    if ids is not None:
                        return ids
        except TimeoutError:
            raise TokensUnavailableError("no engine tokenized in time") from None
        raise TokensUnavailableError("no engine tokenizes this prompt")

    async def _ask(self, worker: Worker, body: bytes) -> NDArray[np.uint32] | None:
        try:
            async with self._session.post(
                worker.urls["/tokenize"],
                data=body,
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                if response.status != 200:  # noqa: PLR2004 - the one that carries tokens
                    return None
                return token_array(_decode(await response.read()).tokens)
        except (aiohttp.ClientError, OSError, msgspec.DecodeError, ValueError):
            return None


def _request_body(prompt: TextPrompt | ChatPrompt, model: str) -> dict[str, Any]:
    if isinstance(prompt, TextPrompt):
        return {
            "model": model,
            "prompt": prompt.text,
            "add_special_tokens": prompt.add_special_tokens,
        }
    return {
        "model": model,
        "messages": prompt.messages,
        "add_special_tokens": prompt.add_special_tokens,
        **prompt.options,
    }
