"""The prefix cache: what is found, what is announced, what is evicted first."""

from array import array

import numpy as np
import pytest

from kvatlas_hashing import chunk_hashes, sequence_hashes
from kvatlas_mocker.cache import PrefixCache, Sequence
from kvatlas_mocker.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from kvatlas_mocker.hashing import BlockHasher, HashKey

SIZE = 4
HASHER = BlockHasher(seed="test", block_size=SIZE)
PLAIN = HashKey()


def sequence(*tokens: int, key: HashKey = PLAIN) -> Sequence:
    made = Sequence(array("I", tokens), key)
    HASHER.extend(made.hashes, made.tokens, key)
    return made


def run(cache: PrefixCache, made: Sequence) -> int:
    """Prefill a sequence and let it go; the number of its cached tokens."""
    cached = cache.admit(made)
    assert cached is not None
    cache.register(made, len(made.tokens))
    cache.release(made)
    return cached


def removed(events: list[CacheEvent]) -> list[int]:
    return [h for e in events if isinstance(e, BlockRemoved) for h in e.block_hashes]


def test_the_last_token_is_computed_even_if_its_block_is_cached() -> None:
    cache = PrefixCache(blocks=8, block_size=SIZE)
    assert run(cache, sequence(*range(8))) == 0
    assert run(cache, sequence(*range(8))) == 4
    assert run(cache, sequence(*range(9))) == 8


def test_a_store_is_announced_as_the_engine_announces_it() -> None:
    cache = PrefixCache(blocks=8, block_size=SIZE)
    made = sequence(*range(10), key=HashKey("sql", 1, "tenant"))
    run(cache, made)
    assert cache.take_events() == [
        BlockStored(
            block_hashes=made.hashes,
            parent_block_hash=None,
            token_ids=list(range(8)),
            block_size=SIZE,
            lora_id=1,
            medium="GPU",
            lora_name="sql",
            extra_keys=[["sql", "tenant"], ["sql"]],
            group_idx=0,
        )
    ]


def test_a_prefix_under_another_adapter_or_salt_is_another_prefix() -> None:
    cache = PrefixCache(blocks=32, block_size=SIZE)
    keys = [PLAIN, HashKey("a", 1), HashKey("b", 2), HashKey(None, None, "s"), HashKey("a", 1, "s")]
    assert [run(cache, sequence(*range(9), key=key)) for key in keys] == [0] * 5
    assert [run(cache, sequence(*range(9), key=key)) for key in keys] == [8] * 5


def test_the_least_recently_freed_block_goes_first_and_tails_before_heads() -> None:
    cache = PrefixCache(blocks=4, block_size=SIZE)
    first, second = sequence(*range(8)), sequence(*range(100, 108))
    run(cache, first)
    run(cache, second)
    run(cache, sequence(*range(8)))  # takes its own tail's place, the oldest; now the youngest
    cache.take_events()
    run(cache, sequence(*range(200, 212)))
    assert removed(cache.take_events()) == [second.hashes[1], second.hashes[0], first.hashes[1]]
    assert first.hashes[0] in [h for h, _, _ in cache.cached()]


def test_a_removal_is_announced_before_the_store_it_makes_room_for() -> None:
    cache = PrefixCache(blocks=2, block_size=SIZE)
    run(cache, sequence(*range(8)))
    cache.take_events()
    run(cache, sequence(*range(50, 58)))
    assert [type(event) for event in cache.take_events()] == [
        BlockRemoved,
        BlockRemoved,
        BlockStored,
    ]
    assert cache.evictions == 2


def test_without_room_nothing_changes() -> None:
    cache = PrefixCache(blocks=4, block_size=SIZE)
    holder = sequence(*range(12))
    assert cache.admit(holder) == 0
    cache.register(holder, 12)
    cache.take_events()
    assert cache.admit(sequence(*range(50, 60))) is None
    assert cache.free_blocks == 1
    assert cache.take_events() == []
    # Shared blocks need no room: only the third block is new.
    assert cache.admit(sequence(*range(8), 99)) == 8
    assert cache.free_blocks == 0
    assert cache.usage == 1


def test_blocks_are_cached_when_the_output_fills_them() -> None:
    cache = PrefixCache(blocks=4, block_size=SIZE)
    made = sequence(1, 2, 3)
    assert cache.admit(made) == 0
    cache.register(made, 3)
    assert cache.take_events() == []
    made.tokens.extend([4, 5])
    assert cache.grow(made)
    HASHER.extend(made.hashes, made.tokens, PLAIN)
    cache.register(made, 5)
    (event,) = cache.take_events()
    assert isinstance(event, BlockStored)
    assert event.token_ids == [1, 2, 3, 4]


def test_a_second_copy_of_a_block_is_not_announced_and_goes_back() -> None:
    cache = PrefixCache(blocks=8, block_size=SIZE)
    one, two = sequence(*range(8)), sequence(*range(8))
    run(cache, one)
    cache.take_events()
    assert cache.admit(two) == 4
    cache.register(two, 8)
    assert cache.take_events() == []
    assert cache.free_blocks == 6
    assert len(list(cache.cached())) == 2


def test_with_repeated_stores_a_copy_is_stored_and_removed_like_the_first() -> None:
    cache = PrefixCache(blocks=4, block_size=SIZE, repeat_stores=True)
    run(cache, sequence(*range(8)))
    run(cache, sequence(*range(8)))
    stored = [h for e in cache.take_events() if isinstance(e, BlockStored) for h in e.block_hashes]
    tail = sequence(*range(8)).hashes[1]
    assert stored.count(tail) == 2
    run(cache, sequence(*range(100, 116)))
    assert removed(cache.take_events()).count(tail) == 2
    assert tail not in [h for h, _, _ in cache.cached()]


def test_a_reset_waits_until_no_block_is_in_use() -> None:
    cache = PrefixCache(blocks=4, block_size=SIZE)
    made = sequence(*range(8))
    cache.admit(made)
    cache.register(made, 8)
    cache.take_events()
    assert not cache.reset()
    cache.release(made)
    assert cache.reset()
    assert cache.take_events() == [AllBlocksCleared()]
    assert list(cache.cached()) == []
    assert run(cache, sequence(*range(8), 1)) == 0


def test_the_hashes_are_not_those_of_the_hash_contract() -> None:
    tokens = np.arange(64, dtype=np.uint32)
    contract = set(sequence_hashes(chunk_hashes(tokens, SIZE)).tolist())
    assert contract.isdisjoint(sequence(*range(64)).hashes)


@pytest.mark.parametrize("split", [1, 4, 7, 12])
def test_hashes_do_not_depend_on_how_a_sequence_grew(split: int) -> None:
    grown = sequence(*range(split))
    grown.tokens.extend(range(split, 21))
    HASHER.extend(grown.hashes, grown.tokens, PLAIN)
    assert grown.hashes == sequence(*range(21)).hashes
