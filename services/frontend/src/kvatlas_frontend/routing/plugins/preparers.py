"""Prepare plugins, in the order of their slots: `tokens` → `chunk-hashes` → `matches`."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvatlas_chassis import Settings
from kvatlas_client import Matches
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

    def prepare_now(self, context: RoutingContext) -> float | None:
        """See `ImmediatePreparer`."""
        read = context[REQUEST].read
        if read is None or read.prompt.tokens is None:
            return None
        context[TOKENS] = Tokens(read.prompt.tokens, read.prompt.whole)
        return read.prompt.tokenize_s

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

    def prepare_now(self, context: RoutingContext) -> float | None:
        """See `ImmediatePreparer`."""
        request = context[REQUEST]
        read = request.read
        if read is None or read.prompt.chunk_hashes is None:
            return None
        if read.prompt.lora_name != request.model.lora_name:
            return None  # the model became an adapter, or ceased to be one, meanwhile
        context[CHUNK_HASHES] = read.prompt.chunk_hashes
        return read.prompt.hash_s

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

    def prepare_now(self, context: RoutingContext) -> float | None:
        """See `ImmediatePreparer`."""
        if self._needs_no_call(context):
            return 0.0
        read = context[REQUEST].read
        if read is None or read.matches is None:
            return None
        if isinstance(read.matches, NoIndexerError):
            self._write_failure(context)
        else:
            self._write(context, read.matches)
        return read.find_s

    async def prepare(self, context: RoutingContext) -> None:
        """See `Preparer`."""
        if self._needs_no_call(context):
            return
        try:
            found = await self._finder.find(
                context[CHUNK_HASHES], limit=self._limit, deadline_ms=self._deadline_ms
            )
        except NoIndexerError:
            self._write_failure(context)
        else:
            self._write(context, found)

    def _needs_no_call(self, context: RoutingContext) -> bool:
        failure = context[TOKENS].failure
        if failure is None and len(context[CHUNK_HASHES]):
            return False
        context[MATCHES] = MatchedDepths(self._no_depths(), failure)
        return True

    def _no_depths(self) -> NDArray[np.int64]:
        return np.zeros(self._fleet.columns.rows, dtype=np.int64)

    def _write_failure(self, context: RoutingContext) -> None:
        context[MATCHES] = MatchedDepths(self._no_depths(), Reason.NO_INDEXER)

    def _write(self, context: RoutingContext, found: Matches) -> None:
        # Look rows up only now: the table may have changed during the call.
        columns, rows = self._fleet.columns, self._fleet.rows
        depths = self._no_depths()
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
        (REQUEST, TOKENS, CHUNK_HASHES),
        (MATCHES,),
        "find",
    ),
)
