"""Hit ratios and sizes, worked out by hand."""

import numpy as np
import pytest

from kvatlas_loadtest.cache_model import (
    BlockNumbering,
    Hits,
    PromptBlocks,
    capacity_for,
    infinite_cache_hits,
    lru_cache_hits,
)


def number_blocks(*prompts: tuple[list[int], int]) -> list[PromptBlocks]:
    numbering = BlockNumbering(2)
    return [
        numbering.number_blocks(np.array(tokens, dtype=np.uint32), output_tokens=output)
        for tokens, output in prompts
    ]


def prompt(*blocks: int, output: int = 0) -> PromptBlocks:
    """A prompt with a token after its last full block."""
    return PromptBlocks(blocks, len(blocks), output)


def test_equal_tokens_after_different_prefixes_are_different_blocks() -> None:
    first, second = number_blocks(([1, 2, 3, 4, 9], 0), ([5, 6, 3, 4], 0))
    assert first.blocks == (0, 1)
    assert second.blocks == (2, 3)


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    whole, tail = number_blocks(([1, 2, 3, 4], 0), ([1, 2, 3, 4, 5], 0))
    assert whole.usable == 1
    assert tail.usable == 2


def test_answers_fill_blocks_with_the_prompts_partial_one() -> None:
    (blocks,) = number_blocks(([1, 2, 3], 4))  # 7 tokens: 3 blocks, one of them the prompt's
    assert blocks.output_blocks == 2


def test_an_infinite_cache_hits_every_leading_block_seen_before() -> None:
    prompts = number_blocks(
        ([1, 2, 3, 4, 5], 0),  # 2 blocks, none held
        ([1, 2, 3, 4, 6, 7, 8], 0),  # 3 blocks, 2 held
        ([1, 2, 3, 4], 0),  # 2 blocks, both held, 1 usable
        ([9, 9, 3, 4], 0),  # 2 blocks; the second's prefix is another
        ([1], 0),  # no full block
    )
    assert infinite_cache_hits(prompts) == Hits(3, 9)
    assert infinite_cache_hits(prompts).ratio == pytest.approx(3 / 9)
    assert Hits(0, 0).ratio == 0.0


def test_an_lru_cache_forgets_what_was_used_longest_ago_tails_first() -> None:
    prompts = [prompt(0, 1, 2), prompt(3), prompt(0, 1, 2)]
    assert lru_cache_hits(prompts, capacity_blocks=4) == Hits(3, 7)
    assert lru_cache_hits(prompts, capacity_blocks=3) == Hits(2, 7)  # block 2 went for block 3
    assert lru_cache_hits(prompts, capacity_blocks=1) == Hits(0, 7)


def test_blocks_of_answers_take_room_too() -> None:
    prompts = [prompt(0, 1), prompt(2, output=1), prompt(0, 1)]
    assert lru_cache_hits(prompts, capacity_blocks=4) == Hits(2, 5)
    assert lru_cache_hits(prompts, capacity_blocks=3) == Hits(1, 5)


def test_engines_are_sized_to_evict_yet_to_keep_what_is_used_again() -> None:
    prompts = [prompt(0, n, output=1) for n in range(1, 1_001)]  # one shared root
    capacity = capacity_for(prompts, engines=4)
    assert capacity.blocks_stored == 2_001
    assert capacity.blocks_per_engine == int(0.3 * 1.1 * 2_001) // 4
    assert capacity.evictions_certain
    assert capacity.lru_ratio == pytest.approx(999 / 2_000)


def test_no_engine_is_too_small_for_its_largest_request() -> None:
    capacity = capacity_for([prompt(*range(100))], engines=8)
    assert capacity.blocks_per_engine == 127
    assert not capacity.evictions_certain


def test_a_size_that_was_asked_for_is_kept() -> None:
    prompts = [prompt(0, n) for n in range(1, 11)]
    capacity = capacity_for(prompts, engines=2, blocks_per_engine=5)
    assert capacity.blocks_per_engine == 5
    assert capacity.evictions_certain
