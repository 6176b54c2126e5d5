"""Everything that is no prompt is refused with one error; everything that is one is converted."""

from array import array
from collections.abc import Sequence

import numpy as np
import pytest

from kvatlas_hashing import chunk_hashes, sequence_hashes

EXPECTED = chunk_hashes(np.arange(32, dtype=np.uint32), 16).tolist()


@pytest.mark.parametrize(
    "tokens",
    [
        list(range(32)),
        tuple(range(32)),
        range(32),
        array("I", range(32)),
        [np.int64(i) for i in range(32)],
        np.arange(32, dtype=np.int64),
        np.arange(32, dtype=np.uint8),
        np.arange(32, dtype=">u4"),
        np.arange(64, dtype=np.uint32)[::2] // 2,
        np.repeat(np.arange(32, dtype=np.uint32), 3)[::3],
        memoryview(array("I", range(32))),
    ],
    ids=lambda tokens: type(tokens).__name__ + str(getattr(tokens, "dtype", "")),
)
def test_any_sequence_of_integers_is_a_prompt(tokens: Sequence[int]) -> None:
    assert chunk_hashes(tokens, 16).tolist() == EXPECTED


def test_a_read_only_array_is_a_prompt() -> None:
    tokens = np.arange(32, dtype=np.uint32)
    tokens.flags.writeable = False
    assert chunk_hashes(tokens, 16).tolist() == EXPECTED


def test_an_unaligned_array_is_a_prompt() -> None:
    raw = b"x" + np.arange(32, dtype=np.uint32).tobytes()
    tokens = np.frombuffer(raw, np.uint8)[1:].view(np.uint32)
    assert not tokens.flags.aligned
    assert chunk_hashes(tokens, 16).tolist() == EXPECTED


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        ([1, -1], ValueError, "tokens must be uint32: -1 is outside"),
        ([1, 2**32], ValueError, "4294967296 is outside of 0..4294967295"),
        ([1, 2**70], ValueError, "is outside of"),
        (np.array([1, -1]), ValueError, "-1 is outside"),
        (np.array([1, 2**32]), ValueError, "4294967296 is outside"),
        (np.zeros((2, 16), np.uint32), ValueError, "one dimension, not 2"),
        (np.zeros((2, 16), np.int64), ValueError, "one dimension, not 2"),
        (np.uint32(3), ValueError, "one dimension, not 0"),
        (3, ValueError, "one dimension, not 0"),
        ([1.0, 2.0], TypeError, "sequence of integers"),
        ([[1, 2], [3, 4]], TypeError, "sequence of integers"),
        (["1"], TypeError, "sequence of integers"),
        ([None], TypeError, "sequence of integers"),
        (np.array([1.0]), TypeError, "integers, not float64"),
        (np.array([True]), TypeError, "integers, not bool"),
        (np.array([2**70]), TypeError, "integers, not object"),
        ("prompt", ValueError, "one dimension, not 0"),
        (["prompt"], TypeError, "sequence of integers"),
        (b"prompt", ValueError, "one dimension, not 0"),
        (None, ValueError, "one dimension, not 0"),
    ],
)
def test_what_is_no_prompt_is_refused(
    tokens: Sequence[int], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        chunk_hashes(tokens, 16)


@pytest.mark.parametrize("block_size", [0, -1, -(2**70)])
def test_a_block_size_below_one_is_refused(block_size: int) -> None:
    with pytest.raises(ValueError, match="block_size must be at least 1"):
        chunk_hashes([1, 2], block_size)


@pytest.mark.parametrize("block_size", [16.0, "16", None])
def test_a_block_size_that_is_no_integer_is_refused(block_size: int) -> None:
    with pytest.raises(TypeError):
        chunk_hashes([1, 2], block_size)


def test_a_block_size_beyond_any_prompt_gives_no_hash() -> None:
    assert chunk_hashes([1, 2], 3).tolist() == []
    assert chunk_hashes([1, 2], 2**63).tolist() == []
    assert chunk_hashes([1, 2], 2**100).tolist() == []
    assert chunk_hashes([], 1).tolist() == []


@pytest.mark.parametrize("items", [[], [None], [None] * 3])
def test_item_hashes_have_one_entry_per_full_block(items: list[None]) -> None:
    with pytest.raises(ValueError, match="each of the 2 full blocks"):
        chunk_hashes(np.arange(40, dtype=np.uint32), 16, item_hashes=items)


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_an_item_hash_outside_of_u64_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="item_hashes must be uint64"):
        chunk_hashes([1, 2], 2, item_hashes=[[bad]])


@pytest.mark.parametrize("bad", [["x"], "ab", 3, [1.5]])
def test_item_hashes_that_are_no_integers_are_refused(bad: Sequence[int]) -> None:
    with pytest.raises(TypeError):
        chunk_hashes([1, 2], 2, item_hashes=[bad])


def test_chunks_are_uint64() -> None:
    big = [2**64 - 1, 0, 2**63]
    expected = sequence_hashes(np.array(big, np.uint64)).tolist()
    assert sequence_hashes(big).tolist() == expected
    assert sequence_hashes(np.array([3, 4], np.int64)).tolist() == sequence_hashes([3, 4]).tolist()
    with pytest.raises(ValueError, match="chunks must be uint64: -1 is outside"):
        sequence_hashes([-1])
    with pytest.raises(ValueError, match="18446744073709551616 is outside"):
        sequence_hashes([2**64])
    with pytest.raises(TypeError, match="integers, not float64"):
        sequence_hashes(np.array([1.0]))  # pyright: ignore[reportArgumentType] - the error under test
    with pytest.raises(ValueError, match="one dimension"):
        sequence_hashes(np.zeros((1, 1), np.uint64))


def test_the_arguments_are_left_as_they_were() -> None:
    tokens = np.arange(32, dtype=np.uint32)
    chunks = chunk_hashes(tokens, 16)
    before = chunks.copy()
    sequence_hashes(chunks)
    assert (tokens == np.arange(32)).all()
    assert (chunks == before).all()
