"""The mirror's bytes: any damage is an error, with or without a checksum that fits; never a crash.

That a mirror made of them goes on as the old one would have is shown by the differential test.
"""

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas_engines import Cleared, Removed, Stored, Tier
from kvatlas_publisher.mirror import Mirror

BLOCKS_MAX = 100
NAMED = 30


def a_mirror() -> Mirror:
    """Of all kinds of blocks: named contexts, a gap, suspects, several tiers and hashes."""
    mirror = Mirror(block_size=1, blocks_max=BLOCKS_MAX)

    def stored(first: int, parent: int | None, tier: Tier = Tier.DEVICE) -> Stored:
        hashes = tuple(range(first, first + 3))
        tokens = np.array(hashes, dtype=np.uint32).reshape(-1, 1)
        lora_name, cache_salt = ("sql", "tenant") if first == NAMED else (None, None)
        return Stored(hashes, parent, tokens, tier, lora_name=lora_name, cache_salt=cache_salt)

    mirror.put([stored(10, None), stored(20, 12), stored(NAMED, None)])
    mirror.suspect_all()
    mirror.put([stored(40, NAMED + 2), stored(20, 12, Tier.HOST), Removed((11,), Tier.DEVICE)])
    mirror.take()
    return mirror


STATE = bytes(a_mirror().export_state())


def restored(state: bytes, *, block_size: int = 1, blocks_max: int = BLOCKS_MAX) -> Mirror:
    return Mirror.restored(state, engine="vllm", block_size=block_size, blocks_max=blocks_max)


def sealed(body: bytes) -> bytes:
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def test_it_is_the_same_mirror() -> None:
    before, after = a_mirror(), restored(STATE)
    assert after.export_state() == STATE
    assert after.digests() == before.digests()
    assert after.held_blocks == before.held_blocks
    assert after.suspect_blocks == before.suspect_blocks > 0
    assert after.unreachable_blocks == before.unreachable_blocks > 0
    assert after.pending_events == 0


def test_an_empty_mirror_is_one_too() -> None:
    state = bytes(Mirror(block_size=1).export_state())
    assert restored(state).held_blocks == 0


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    for at in range(len(STATE)):
        for bit in range(8):
            damaged = bytearray(STATE)
            damaged[at] ^= 1 << bit
            with pytest.raises(ValueError, match=r"^it"):
                restored(bytes(damaged))
        with pytest.raises(ValueError, match=r"^it"):
            restored(STATE[:at])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"block_size": 2}, "another block size"),
        ({"blocks_max": 5}, "more blocks than are allowed"),
    ],
)
def test_other_settings_are_refused(changes: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        restored(STATE, **changes)
    with pytest.raises(ValueError, match="another engine"):
        Mirror.restored(STATE, engine="sglang", block_size=1, blocks_max=BLOCKS_MAX)


@settings(max_examples=2_000, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(STATE) - 9), st.binary(min_size=1, max_size=8)),
        min_size=1,
        max_size=4,
    ),
    cut=st.integers(0, 3),
)
def test_what_a_forged_checksum_lets_in_is_refused_or_could_have_been(
    edits: list[tuple[int, bytes]], cut: int
) -> None:
    body = bytearray(STATE[:-8])
    for at, written in edits:
        body[at : at + len(written)] = written
    body = body[: len(body) - cut]
    try:
        mirror = restored(sealed(bytes(body)))
    except ValueError:
        return
    # It is whole: taking out all that it holds, in any way, breaks nothing and leaves nothing.
    assert mirror.export_state()
    mirror.suspect_all()
    mirror.capacity_blocks = 1
    mirror.put([Removed(tuple(range(20, 60)), tier) for tier in Tier])
    published = mirror.snapshot()
    for digest in mirror.digests():
        hashes = published.get(digest.tier, np.empty(0, np.uint64))
        assert len(hashes) == digest.blocks
        assert np.bitwise_xor.reduce(hashes) == digest.digest
    mirror.put([Cleared(tier) for tier in Tier])
    assert mirror.held_blocks == 0
    assert mirror.suspect_blocks == 0
    assert not mirror.snapshot()
