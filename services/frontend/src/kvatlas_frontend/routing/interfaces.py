"""The interfaces through which routing asks indexers and tokenizers."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvatlas_client import Matches
from kvatlas_frontend.api.body import Prompt
from kvatlas_frontend.tokens.prompt_tokenizer import PromptTokens


class NoIndexerError(Exception):
    """No replica answered within the deadline."""


class MatchFinder(Protocol):
    """Asks the indexers. Raises NoIndexerError when none answers in time."""

    async def find(
        self, chunk_hashes: NDArray[np.uint64], *, limit: int, deadline_ms: float
    ) -> Matches:
        """Workers that hold leading blocks of the prompt, at most `limit` (0: all)."""
        ...


class TokenSource(Protocol):
    """Tokenizes prompts. Raises TokensUnavailableError for a prompt that cannot be tokenized."""

    async def tokens(self, prompt: Prompt, model: str) -> PromptTokens:
        """The token ids of a prompt; `model` is the name that the engines use."""
        ...
