"""The mirror's bytes: any damage is an error, with or without a matching checksum; never a crash.

The differential test shows that a mirror read back behaves as the one written.
"""

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas_events import Tier
from kvatlas_publisher.mirror import Mirror
from tests.reference import wire_events as wire
from tests.reference.engine_mirrors import take_pending

BLOCKS_MAX = 100
NAMED = 30


def a_mirror() -> Mirror:
    """All kinds of blocks: named contexts, a gap, suspects, several tiers and hashes."""
    mirror = Mirror(engine="vllm", block_size=1, blocks_max=BLOCKS_MAX)

    def stored(first: int, parent: int | None, tier: Tier = Tier.DEVICE) -> wire.WireEvent:
        hashes = range(first, first + 3)
        named = {"lora_name": "sql", "extra_keys": [["tenant"], None, None]}
        prompt = named if first == NAMED else {}
        return wire.stored(hashes, hashes, parent=parent, tier=tier, **prompt)

    send(mirror, stored(10, None), stored(20, 12), stored(NAMED, None))
    mirror.suspect_all()
    send(mirror, stored(40, NAMED + 2), stored(20, 12, Tier.HOST), wire.removed([11]))
    take_pending(mirror)
    return mirror


def send(mirror: Mirror, *events: wire.WireEvent) -> None:
    assert mirror.apply_payloads([wire.payload(*events)], 0).refusals == []


STATE = bytes(a_mirror().export_state())


def restored(state: bytes, *, block_size: int = 1, blocks_max: int = BLOCKS_MAX) -> Mirror:
    return Mirror(engine="vllm", block_size=block_size, blocks_max=blocks_max, state=state)


def sealed(body: bytes) -> bytes:
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def test_the_mirror_read_back_is_the_same() -> None:
    before, after = a_mirror(), restored(STATE)
    assert bytes(after.export_state()) == STATE
    assert after.digests() == before.digests()
    assert after.held_blocks == before.held_blocks
    assert after.suspect_blocks == before.suspect_blocks > 0
    assert after.unreachable_blocks() == before.unreachable_blocks() > 0
    assert after.pending_events == 0


def test_an_empty_mirror_has_a_state_too() -> None:
    state = bytes(Mirror(engine="vllm", block_size=1, blocks_max=1).export_state())
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
        Mirror(engine="sglang", block_size=1, blocks_max=BLOCKS_MAX, state=STATE)


@settings(max_examples=2_000, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(STATE) - 9), st.binary(min_size=1, max_size=8)),
        min_size=1,
        max_size=4,
    ),
    cut=st.integers(0, 3),
)
def test_a_forged_checksum_admits_only_states_that_are_possible(
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
    # It is whole: every block can be removed, in any way, and nothing is left.
    assert len(mirror.export_state())
    mirror.suspect_all()
    mirror.capacity_blocks = 1
    send(mirror, *(wire.removed(range(20, 60), tier) for tier in Tier))
    published = mirror.snapshot()
    for digest in mirror.digests():
        hashes = published.get(digest.tier, np.empty(0, np.uint64))
        assert len(hashes) == digest.blocks
        assert np.bitwise_xor.reduce(hashes) == digest.digest
    send(mirror, *(wire.cleared(tier) for tier in Tier))
    assert mirror.held_blocks == 0
    assert mirror.suspect_blocks == 0
    assert not mirror.snapshot()
