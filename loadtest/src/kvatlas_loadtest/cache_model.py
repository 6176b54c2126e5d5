"""Computes the best hit ratios that a cache can reach for a list of prompts.

Blocks are full blocks of `block_size` tokens, identified by their whole prefix, as in engines. They
are numbered from the tokens in plain Python, without the hashing that is being measured.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """The blocks of one request.

    Attributes:
        blocks: one number per full block; equal numbers mean equal prefixes.
        usable: number of them that an engine can take from its cache. It always computes the last
            token, so at most (tokens - 1) // block_size.
        output_blocks: blocks that only the answer fills.
    """

    blocks: tuple[int, ...]
    usable: int
    output_blocks: int


@dataclass(frozen=True, slots=True)
class Hits:
    """Blocks found in a cache, and all full blocks of the prompts."""

    hit_blocks: int
    blocks: int

    @property
    def ratio(self) -> float:
        """Hit ratio by block; 0 for prompts without a full block."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0


class BlockNumbering:
    """Gives equal prefixes equal numbers, over all prompts that it numbers."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._names: dict[tuple[int, bytes], int] = {}

    def number_blocks(self, tokens: NDArray[np.uint32], *, output_tokens: int) -> PromptBlocks:
        """Number the full blocks of one prompt."""
        size = self._block_size
        blocks: list[int] = []
        parent = -1
        for start in range(0, len(tokens) - size + 1, size):
            key = (parent, tokens[start : start + size].tobytes())
            parent = self._names.setdefault(key, len(self._names))
            blocks.append(parent)
        return PromptBlocks(
            blocks=tuple(blocks),
            usable=(len(tokens) - 1) // size,
            output_blocks=(len(tokens) + output_tokens) // size - len(blocks),
        )


def infinite_cache_hits(prompts: Sequence[PromptBlocks]) -> Hits:
    """Hits of one cache that evicts nothing and holds a prompt as soon as it is sent."""
    seen: set[int] = set()
    hit_blocks = 0
    for prompt in prompts:
        hit_blocks += _leading_hits(prompt, seen)
        seen.update(prompt.blocks)
    return Hits(hit_blocks, sum(len(prompt.blocks) for prompt in prompts))


def lru_cache_hits(prompts: Sequence[PromptBlocks], *, capacity_blocks: int) -> Hits:
    """Hits of one LRU cache of `capacity_blocks`.

    As in an engine, a request's last blocks are evicted before its first ones, and blocks filled by
    answers take room too.
    """
    held: OrderedDict[int, None] = OrderedDict()
    answers = -1  # blocks of answers never match again: they have their own numbers, below 0
    hit_blocks = 0
    for prompt in prompts:
        hit_blocks += _leading_hits(prompt, held)
        for _ in range(prompt.output_blocks):
            held[answers] = None
            answers -= 1
        for block in reversed(prompt.blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity_blocks:
            held.popitem(last=False)
    return Hits(hit_blocks, sum(len(prompt.blocks) for prompt in prompts))


def _leading_hits(prompt: PromptBlocks, held: "set[int] | OrderedDict[int, None]") -> int:
    hits = 0
    for block in prompt.blocks[: prompt.usable]:
        if block not in held:
            break
        hits += 1
    return hits


@dataclass(frozen=True, slots=True)
class Capacity:
    """The size of the engines' caches, and what follows from it.

    Attributes:
        blocks_per_engine: the size of one engine's cache.
        blocks_stored: distinct blocks that the run's prompts and answers fill.
        evictions_certain: the fleet has room for fewer blocks than the run fills.
        lru_ratio: hit ratio of one LRU cache as large as all engines' caches.
    """

    blocks_per_engine: int
    blocks_stored: int
    evictions_certain: bool
    lru_ratio: float


_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_ROOM_FOR_IMBALANCE = 1.1
_SHARE_MAX = 0.94
_NEAR_INFINITE = 0.99


def capacity_for(
    prompts: Sequence[PromptBlocks], *, engines: int, blocks_per_engine: int | None = None
) -> Capacity:
    """Size the caches so that engines must evict, but good routing still finds nearly all hits.

    Takes the smallest share of all stored blocks whose LRU cache has nearly the hits of an infinite
    one. Adds a little, since no router spreads prefixes perfectly evenly, but never so much that
    all blocks fit. Each engine has room for the largest request. `blocks_per_engine` overrides all
    of this.
    """
    distinct = len({block for prompt in prompts for block in prompt.blocks})
    stored = distinct + sum(prompt.output_blocks for prompt in prompts)
    wanted = infinite_cache_hits(prompts).hit_blocks * _NEAR_INFINITE
    if blocks_per_engine is None:
        share = _SHARES[-1]
        for candidate in _SHARES:
            hits = lru_cache_hits(prompts, capacity_blocks=int(candidate * stored))
            if hits.hit_blocks >= wanted:
                share = candidate
                break
        largest = max(len(prompt.blocks) + prompt.output_blocks for prompt in prompts)
        fair = int(min(share * _ROOM_FOR_IMBALANCE, _SHARE_MAX) * stored) // engines
        blocks_per_engine = max(fair, largest + largest // 4 + 2)
    fleet = blocks_per_engine * engines
    return Capacity(
        blocks_per_engine=blocks_per_engine,
        blocks_stored=stored,
        evictions_certain=fleet < stored,
        lru_ratio=lru_cache_hits(prompts, capacity_blocks=fleet).ratio,
    )
