"""The written promises of the hash contract, checked on known values."""

import numpy as np
import pytest

from kvatlas_hashing import BASE_SEED, chunk_hashes, item_hash, reference, seed, sequence_hashes

# Computed with the xxhash command-line tool's algorithm through NVIDIA Dynamo 1.6.1
# (compute_block_hash_for_seq(list(range(32)), 16)), not by the code under test.
DYNAMO_RANGE_32_BY_16 = [15310707395893867146, 15292316782987903195]


def test_a_known_prompt_has_its_known_hashes() -> None:
    tokens = np.arange(32, dtype=np.uint32)
    assert chunk_hashes(tokens, 16).tolist() == DYNAMO_RANGE_32_BY_16
    assert reference.chunk_hashes(range(32), 16) == DYNAMO_RANGE_32_BY_16


def test_the_partial_tail_has_no_hash() -> None:
    tokens = np.arange(47, dtype=np.uint32)
    assert chunk_hashes(tokens, 16).tolist() == DYNAMO_RANGE_32_BY_16
    assert chunk_hashes(tokens[:15], 16).tolist() == []
    assert chunk_hashes(tokens[:0], 16).tolist() == []
    assert sequence_hashes(np.empty(0, np.uint64)).tolist() == []


def test_a_sequence_begins_with_its_first_chunk_hash() -> None:
    assert sequence_hashes([0]).tolist() == [0]
    assert sequence_hashes([7, 7])[0] == 7
    assert sequence_hashes([7, 7])[1] not in {0, 7}


def test_the_empty_adapter_and_the_empty_salt_are_none() -> None:
    assert seed() == seed("", "") == seed(None, "") == BASE_SEED == 1337
    tokens = np.arange(16, dtype=np.uint32)
    plain = chunk_hashes(tokens, 16)
    assert chunk_hashes(tokens, 16, lora_name="", cache_salt="") == plain
    assert reference.chunk_hashes(range(16), 16, lora_name="", cache_salt="") == plain.tolist()


def test_adapter_and_salt_each_change_every_hash() -> None:
    tokens = np.arange(64, dtype=np.uint32)
    kinds = [
        chunk_hashes(tokens, 16),
        chunk_hashes(tokens, 16, lora_name="x"),
        chunk_hashes(tokens, 16, cache_salt="x"),
        chunk_hashes(tokens, 16, lora_name="x", cache_salt="x"),
    ]
    assert len({int(h) for hashes in kinds for h in hashes}) == 16


def test_items_change_only_their_block_and_their_order_does_not_matter() -> None:
    tokens = np.arange(48, dtype=np.uint32)
    plain = chunk_hashes(tokens, 16)
    a, b = item_hash("a"), item_hash("b")
    with_items = chunk_hashes(tokens, 16, item_hashes=[None, [a, b], []])
    assert (with_items == plain).tolist() == [True, False, True]
    assert (chunk_hashes(tokens, 16, item_hashes=[(), (b, a), None]) == with_items).all()
    with_arrays = [None, np.array([a, b], np.uint64), None]
    assert (chunk_hashes(tokens, 16, item_hashes=with_arrays) == with_items).all()  # pyright: ignore[reportArgumentType] - arrays work where sequences are declared


@pytest.mark.parametrize("text", ["a", "ß𝄞", "x" * 1000])
def test_names_are_hashed_as_utf8(text: str) -> None:
    assert seed(text) == (1337 + item_hash(text)) % 2**64
