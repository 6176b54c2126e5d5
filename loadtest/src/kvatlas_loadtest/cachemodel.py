"""What a cache could at best do with a list of prompts: the yardsticks of the demo.

Blocks here are what engines count: full blocks of `block_size` tokens, told apart by their whole
prefix. It is worked out from the tokens themselves, in plain Python, so that it does not lean on
the hashing that is being measured.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """One request as a cache sees it.

    Attributes:
        blocks: a number per full block; equal numbers stand for equal whole prefixes.
        usable: how many of them an engine can take from its cache: it always computes the last
            token, so at most (tokens - 1) // block_size.
        output_blocks: blocks that only the answer fills.
    """

    blocks: tuple[int, ...]
    usable: int
    output_blocks: int


@dataclass(frozen=True, slots=True)
class Hits:
    """Blocks found in a cache, of all full blocks of the prompts."""

    hit_blocks: int
    blocks: int

    @property
    def ratio(self) -> float:
        """Hits by block; 0 for prompts without a full block."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0


class BlockNames:
    """Gives equal prefixes equal numbers, over all prompts that it is shown."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._names: dict[tuple[int, bytes], int] = {}

    def cut(self, tokens: NDArray[np.uint32], *, output_tokens: int) -> PromptBlocks:
        """Cut one prompt into full blocks."""
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

    @property
    def distinct(self) -> int:
        """Different blocks seen so far."""
        return len(self._names)


def infinite_cache_hits(prompts: Sequence[PromptBlocks]) -> Hits:
    """Hits of one cache that forgets nothing and holds a prompt as soon as it was sent."""
    seen: set[int] = set()
    hit_blocks = 0
    for prompt in prompts:
        hit_blocks += _leading_hits(prompt, seen)
        seen.update(prompt.blocks)
    return Hits(hit_blocks, sum(len(prompt.blocks) for prompt in prompts))


def lru_cache_hits(prompts: Sequence[PromptBlocks], *, capacity_blocks: int) -> Hits:
    """Hits of one cache of `capacity_blocks` that forgets what was used longest ago.

    As in an engine, a request's last blocks age before its first ones, and blocks filled by answers
    take their room too.
    """
    held: OrderedDict[int, None] = OrderedDict()
    answers = -1  # blocks of answers are never asked for again: names of their own, below 0
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
    """How large an engine's cache is made, and why.

    Attributes:
        blocks_per_engine: the size of one engine's cache.
        blocks_stored: different blocks that the prompts and answers of the run fill.
        evictions_certain: the whole fleet holds fewer blocks than the run fills.
        lru_ratio: hit ratio of one LRU cache as large as the fleet.
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
    """Size the engines so that they must evict, yet a fleet routed well loses little by it.

    Takes the smallest share of all blocks stored whose LRU cache has nearly the hits of an infinite
    one, and a little more, since no router spreads prefixes perfectly evenly, but never so much that
    all would fit. An engine never gets less than its largest request needs. With `blocks_per_engine` the size is taken as given.
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
