"""All slots of the routing context, and the types of their values."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvatlas_client import Matches
from kvatlas_frontend.api.body import ParsedBody
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.fleet.models import ModelRoute
from kvatlas_frontend.routing.context import Slot
from kvatlas_frontend.routing.interfaces import NoIndexerError
from kvatlas_native import ReadPrompt


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The part of preparation that the data plane has done."""

    prompt: ReadPrompt
    matches: Matches | NoIndexerError | None = None  # None: it has not asked
    find_s: float = 0.0


def no_header(_: str) -> str | None:
    """The headers of a request that has none."""
    return None


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """The request to route; in the context before any plugin runs."""

    body: ParsedBody
    model: ModelRoute
    engine_url: str | None = None  # the only engine that may get it; None: any
    header: Callable[[str], str | None] = no_header  # the first header of that name
    read: ReadRequest | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The prompt's tokens, uint32[n]; `failure` if it could not be tokenized (then n = 0)."""

    ids: NDArray[np.uint32]
    whole: bool  # False: they end before a multimodal item, or only the engine has them
    failure: Reason | None = None


@dataclass(frozen=True, slots=True)
class MatchedDepths:
    """Depth in blocks by row, int64[rows]; `failure` if no indexer answered (then all are 0)."""

    depths: NDArray[np.int64]
    failure: Reason | None = None


REQUEST: Slot[RoutingRequest] = Slot("request")
TOKENS: Slot[Tokens] = Slot("tokens")
CHUNK_HASHES: Slot[NDArray[np.uint64]] = Slot("chunk-hashes")
MATCHES: Slot[MatchedDepths] = Slot("matches")
SESSION: Slot[str] = Slot("session")  # "": the request names none
PARENT_SESSION: Slot[str] = Slot("parent-session")  # "": none
TENANT: Slot[str] = Slot("tenant")  # "": unknown
HASH_KEY: Slot[int | None] = Slot("hash-key")  # 64 bits; None: nothing to hash
TOKEN_ESTIMATE: Slot[int] = Slot("token-estimate")  # length of the prompt in tokens, about

WRITTEN_BY_WORKFLOW = (REQUEST,)
"""Slots that have a value before any plugin runs."""
