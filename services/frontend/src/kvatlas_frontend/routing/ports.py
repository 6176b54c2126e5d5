"""What routing needs from outside, as narrow as it needs it."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvatlas_frontend.api.body import Prompt
from kvatlas_frontend.tokens.prompt import PromptTokens


@dataclass(frozen=True, slots=True)
class FoundMatches:
    """An indexer's answer: parallel columns, deepest first."""

    worker_ids: NDArray[np.uint64]
    dp_ranks: NDArray[np.uint32]
    depths: NDArray[np.uint32]


class NoIndexerError(Exception):
    """No replica answered within the deadline."""


class MatchFinder(Protocol):
    """Asks the indexers. Raises NoIndexerError when none answers in time."""

    async def find(
        self, chunk_hashes: NDArray[np.uint64], *, limit: int, deadline_ms: float
    ) -> FoundMatches:
        """Workers that hold leading blocks of the prompt, at most `limit` (0: all)."""
        ...


class TokenSource(Protocol):
    """Tokenizes. Raises TokensUnavailableError when nobody can."""

    async def tokens(self, prompt: Prompt, model: str) -> PromptTokens:
        """The ids of a prompt; `model` is its name on the engines."""
        ...
