"""The blocks that an engine really holds, as hashes to compare an index with.

The mock engine is asked for its blocks, tokens and all, and they are hashed here: nothing on the way
from its events to the index takes part.
"""

from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from kvatlas_hashing import chunk_hashes, sequence_hashes

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Truth:
    """Blocks that a prompt can reach from its first one."""

    hashes: frozenset[int]
    prompts: tuple[tuple[int, ...], ...]
    """Sequence hashes of every longest chain, head first."""


async def truth_of(engine_url: str) -> Truth:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{engine_url}/debug/cache") as response,
    ):
        page: dict[str, Any] = await response.json()
    return reachable(page["blocks"]["device"])


def reachable(blocks: list[tuple[Any, list[int], Any]]) -> Truth:
    """Follow the blocks' links down from those that begin a prompt."""
    tokens_of = {block: tokens for block, tokens, _ in blocks}
    children: dict[Any, list[Any]] = {}
    for block, _, parent in blocks:
        children.setdefault(parent, []).append(block)
    prompts: list[tuple[int, ...]] = []
    open_chains: list[list[Any]] = [[block] for block in children.get(None, [])]
    while open_chains:
        chain = open_chains.pop()
        longer = children.get(chain[-1], [])
        open_chains += [[*chain, block] for block in longer]
        if not longer:
            tokens = np.array([token for block in chain for token in tokens_of[block]], np.uint32)
            hashes = sequence_hashes(chunk_hashes(tokens, BLOCK_SIZE))
            prompts.append(tuple(hashes.tolist()))
    return Truth(frozenset(hash_ for prompt in prompts for hash_ in prompt), tuple(prompts))
