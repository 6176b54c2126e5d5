"""The slots there are, and what stands in them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvatlas_frontend.api.body import ParsedBody
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.fleet.models import ModelRoute
from kvatlas_frontend.routing.context import Slot


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What is asked; in the context before any plugin runs."""

    body: ParsedBody
    model: ModelRoute


@dataclass(frozen=True, slots=True)
class Tokens:
    """The prompt's tokens, uint32[n]; `failure` where nobody could tell them (then n = 0)."""

    ids: NDArray[np.uint32]
    whole: bool  # False: they stop before a multimodal item, or there are none outside the engine
    failure: Reason | None = None


@dataclass(frozen=True, slots=True)
class Matches:
    """Depth in blocks by row, int64[rows]; `failure` where no indexer answered (then all 0)."""

    depths: NDArray[np.int64]
    failure: Reason | None = None


REQUEST: Slot[RoutingRequest] = Slot("request")
TOKENS: Slot[Tokens] = Slot("tokens")
CHUNK_HASHES: Slot[NDArray[np.uint64]] = Slot("chunk-hashes")
MATCHES: Slot[Matches] = Slot("matches")

GIVEN = (REQUEST,)
"""Written by the workflow itself."""
