"""Prepare plugins, in the order of their slots: `tokens` → `chunk-hashes` → `matches`."""

from typing import Any, Final

import numpy as np
from pydantic import Field

from kvatlas_chassis import Settings
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.interfaces import NoIndexerError
from kvatlas_frontend.routing.plugin import Kind, NoParams, PluginSpec, Services
from kvatlas_frontend.routing.slots import (
    CHUNK_HASHES,
    MATCHES,
    REQUEST,
    TOKENS,
    MatchedDepths,
    Tokens,
)
from kvatlas_frontend.tokens.prompt_tokenizer import TokensUnavailableError
from kvatlas_hashing import chunk_hashes


class TokensPlugin:
    """Writes the prompt's token ids, or the reason why it cannot be tokenized."""

    def __init__(self, services: Services, _: NoParams) -> None:
        self._source = services.tokens

    async def prepare(self, context: RoutingContext) -> None:
        """See `Preparer`."""
        request = context[REQUEST]
        try:
            found = await self._source.tokens(request.body.prompt, request.model.name)
        except TokensUnavailableError:
            empty = np.empty(0, dtype=np.uint32)
            context[TOKENS] = Tokens(empty, whole=False, failure=Reason.NO_TOKENS)
        else:
            context[TOKENS] = Tokens(found.ids, found.whole)


class ChunkHashesPlugin:
    """Writes the chunk hashes of the blocks that an engine can take from its cache.

    An engine always computes a prompt's last token again, to sample from it. So of n tokens at most
    (n - 1) // block_size blocks can be cache hits.
    """

    def __init__(self, services: Services, _: NoParams) -> None:
        self._block_size = services.block_size

    async def prepare(self, context: RoutingContext) -> None:
        """See `Preparer`."""
        request = context[REQUEST]
        tokens = context[TOKENS]
        hashes = chunk_hashes(
            tokens.ids,
            self._block_size,
            lora_name=request.model.lora_name,
            cache_salt=request.body.cache_salt or None,
        )
        usable = (len(tokens.ids) - 1) // self._block_size if tokens.whole else len(hashes)
        context[CHUNK_HASHES] = hashes[: max(0, usable)]


class MatchesParams(Settings):
    """`limit`: how many workers, deepest first, are credited with their matches; 0: all."""

    limit: int = Field(default=64, ge=0)


class MatchesPlugin:
    """Writes how many blocks each worker holds; asks an indexer, within the deadline."""

    def __init__(self, services: Services, params: MatchesParams) -> None:
        self._fleet = services.fleet
        self._finder = services.matches
        self._limit = params.limit
        self._deadline_ms = services.deadline_ms

    async def prepare(self, context: RoutingContext) -> None:
        """See `Preparer`."""
        hashes = context[CHUNK_HASHES]
        failure = context[TOKENS].failure
        if failure is not None or not len(hashes):
            depths = np.zeros(self._fleet.columns.rows, dtype=np.int64)
            context[MATCHES] = MatchedDepths(depths, failure)
            return
        try:
            found = await self._finder.find(
                hashes, limit=self._limit, deadline_ms=self._deadline_ms
            )
        except NoIndexerError:
            depths = np.zeros(self._fleet.columns.rows, dtype=np.int64)
            context[MATCHES] = MatchedDepths(depths, Reason.NO_INDEXER)
            return
        # Look rows up only now: the table may have changed during the call.
        columns, rows = self._fleet.columns, self._fleet.rows
        depths = np.zeros(columns.rows, dtype=np.int64)
        workers = zip(found.worker_ids.tolist(), found.dp_ranks.tolist(), strict=True)
        for worker, depth in zip(workers, found.depths.tolist(), strict=True):
            row = rows.get(worker)  # type: ignore[call-overload] - a WorkerKey is such a tuple
            if row is not None and columns.live[row]:
                depths[row] = depth
        context[MATCHES] = MatchedDepths(depths)


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec("tokens", Kind.PREPARE, NoParams, TokensPlugin, (REQUEST,), (TOKENS,), "tokenize"),
    PluginSpec(
        "chunk-hashes",
        Kind.PREPARE,
        NoParams,
        ChunkHashesPlugin,
        (REQUEST, TOKENS),
        (CHUNK_HASHES,),
        "hash",
    ),
    PluginSpec(
        "matches",
        Kind.PREPARE,
        MatchesParams,
        MatchesPlugin,
        (TOKENS, CHUNK_HASHES),
        (MATCHES,),
        "find",
    ),
)
