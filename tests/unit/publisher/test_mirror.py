"""The mirror's rules, one by one, for the specification and for the native one.

Hashes are those of the reference contract.
"""

from collections.abc import Callable

import pytest

from kvatlas_engines import RefusalReason
from kvatlas_events import Clear, Event, Remove, Store, Tier, TierDigest
from kvatlas_hashing import item_hash, reference
from tests.reference import wire_events as wire
from tests.reference.engine_mirrors import (
    EngineMirror,
    native_mirror,
    specified_mirror,
)

Make = Callable[..., EngineMirror]
removed, cleared = wire.removed, wire.cleared


def stored(*hashes: int, first_token: int = 0, **fields: object) -> wire.WireEvent:
    """Blocks of two tokens, which count up from `first_token`."""
    tokens = range(first_token, first_token + 2 * len(hashes))
    return wire.stored(hashes, tokens, **fields)  # pyright: ignore[reportArgumentType]


def sequences(blocks: int, **prompt: str | None) -> list[int]:
    return reference.sequence_hashes(
        reference.chunk_hashes(list(range(2 * blocks)), 2, **prompt)  # pyright: ignore[reportArgumentType]
    )


def plain(events: list[Event]) -> list[object]:
    """Show events with lists for arrays."""
    shown: list[object] = []
    for event in events:
        match event:
            case Store():
                shown.append(("store", event.parent, event.sequence_hashes.tolist(), event.tier))
            case Remove():
                shown.append(("remove", event.sequence_hashes.tolist(), event.tier))
            case _:
                shown.append(event)
    return shown


@pytest.fixture(params=[specified_mirror, native_mirror], ids=["specification", "native"])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def mirror_of(make: Make, *events: wire.WireEvent) -> EngineMirror:
    mirror = make()
    mirror.apply(*events)
    return mirror


S = sequences(4)


def test_a_chain_is_one_store_and_its_continuation_names_its_parent(make: Make) -> None:
    mirror = make()
    assert plain(mirror.apply(stored(1, 2))) == [("store", None, S[:2], Tier.DEVICE)]
    assert plain(mirror.apply(stored(3, 4, parent=2, first_token=4))) == [
        ("store", S[1], S[2:], Tier.DEVICE)
    ]


def test_evicting_a_head_takes_its_tail_out_and_storing_it_again_brings_it_back(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3, 4))
    assert plain(mirror.apply(removed([2]))) == [("remove", [S[3], S[2], S[1]], Tier.DEVICE)]
    assert mirror.unreachable_blocks() == 2
    assert plain(mirror.apply(stored(2, parent=1, first_token=2))) == [
        ("store", S[0], S[1:], Tier.DEVICE)
    ]


def test_moving_a_head_to_the_host_keeps_its_tail_published(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3))
    moved = mirror.apply(stored(1, tier=Tier.HOST), removed([1]))
    assert plain(moved) == [("store", None, S[:1], Tier.HOST), ("remove", S[:1], Tier.DEVICE)]


def test_a_tail_that_comes_back_from_two_tiers_is_published_on_both(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3), stored(2, parent=1, first_token=2, tier=Tier.DISK))
    assert plain(mirror.apply(removed([1]))) == [
        ("remove", [S[2], S[1]], Tier.DEVICE),
        ("remove", [S[1]], Tier.DISK),
        ("remove", [S[0]], Tier.DEVICE),
    ]
    assert plain(mirror.apply(stored(1))) == [
        ("store", None, S[:3], Tier.DEVICE),
        ("store", S[0], [S[1]], Tier.DISK),
    ]


def test_storing_twice_and_removing_once_is_removed(make: Make) -> None:
    mirror = mirror_of(make, stored(1))
    assert mirror.apply(stored(1)) == []
    assert plain(mirror.apply(removed([1]))) == [("remove", S[:1], Tier.DEVICE)]
    assert mirror.apply(removed([1])) == []


def test_two_engine_hashes_of_one_block_hold_it_until_both_are_gone(make: Make) -> None:
    mirror = mirror_of(make, stored(1), stored(11))
    assert mirror.apply(removed([1])) == []
    assert plain(mirror.apply(removed([11]))) == [("remove", S[:1], Tier.DEVICE)]


def test_a_child_inherits_adapter_and_salt(make: Make) -> None:
    mirror = mirror_of(make, stored(1, lora_name="sql", extra_keys=[["tenant"]]))
    expected = sequences(2, lora_name="sql", cache_salt="tenant")
    assert plain(mirror.apply(stored(2, parent=1, first_token=2))) == [
        ("store", expected[0], expected[1:], Tier.DEVICE)
    ]
    assert expected[0] != S[0]


@pytest.mark.parametrize("prompt", [{"lora_name": "other"}, {"cache_salt": "other"}])
def test_a_child_of_another_adapter_or_salt_is_refused(make: Make, prompt: dict[str, str]) -> None:
    mirror = make(engine="sglang")  # whose children name their salt
    mirror.apply(stored(1, lora_name="sql"))
    assert mirror.apply(stored(2, parent=1, first_token=2, **prompt)) == []
    assert mirror.unindexable == {RefusalReason.CONFLICTING_PREFIX: 1}


def test_items_enter_the_hash_of_their_block(make: Make) -> None:
    mirror = make()
    expected = reference.sequence_hashes(
        reference.chunk_hashes(
            [0, 1, 2, 3], 2, item_hashes=[None, [item_hash("a"), item_hash("b")]]
        )
    )
    assert plain(mirror.apply(stored(1, 2, extra_keys=[None, [["a", 0], ["b", 7]]]))) == [
        ("store", None, expected, Tier.DEVICE)
    ]


def test_blocks_without_a_known_prefix_or_tokens_are_counted_not_guessed(make: Make) -> None:
    mirror = make()
    embeds = stored(4, 5, extra_keys=[[b"digest"], None])
    unknown: wire.WireEvent = {"type": "Other"}
    offload = wire.stored_by_hash([8, 9], Tier.HOST)
    assert mirror.apply(stored(2, 3, parent=1), offload, embeds, unknown) == []
    assert mirror.unindexable == {
        RefusalReason.UNKNOWN_PARENT: 2,
        RefusalReason.UNKNOWN_HASH: 2,
        RefusalReason.EMBEDS: 2,
        RefusalReason.UNKNOWN_EVENT: 1,
    }


def test_a_tokenless_offload_is_resolved_by_its_hash(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2))
    offloaded = mirror.apply(wire.stored_by_hash([1, 2], Tier.HOST))
    assert plain(offloaded) == [("store", None, S[:2], Tier.HOST)]


def test_a_hash_that_comes_back_as_other_tokens_stands_for_the_newer_ones(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2))
    other = reference.sequence_hashes(reference.chunk_hashes([50, 51], 2))
    assert plain(mirror.apply(stored(1, first_token=50))) == [
        ("remove", [S[1], S[0]], Tier.DEVICE),
        ("store", None, other, Tier.DEVICE),
    ]
    assert mirror.unindexable == {RefusalReason.CONFLICTING_PREFIX: 1}


def test_clearing_is_published_once(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2), stored(1, tier=Tier.HOST))
    assert mirror.apply(cleared()) == [Clear(None)]
    assert mirror.apply(cleared()) == []
    assert mirror.held_blocks == 0


def test_digests_name_the_device_even_when_nothing_is_held(make: Make) -> None:
    # An indexer with left-over blocks would otherwise have nothing to compare them with.
    empty = TierDigest(Tier.DEVICE, 0, 0)
    mirror = make()
    assert mirror.digests() == (empty,)
    mirror.apply(stored(1, tier=Tier.HOST))
    assert mirror.digests() == (empty, TierDigest(Tier.HOST, 1, S[0]))
    mirror.apply(cleared())
    assert mirror.digests() == (empty,)


def test_clearing_a_tier_first_takes_out_what_it_alone_made_reachable(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3), stored(2, parent=1, first_token=2, tier=Tier.HOST))
    assert plain(mirror.apply(cleared(Tier.DEVICE))) == [
        ("remove", [S[2], S[1]], Tier.DEVICE),
        ("remove", [S[1]], Tier.HOST),
        ("remove", [S[0]], Tier.DEVICE),
    ]
    assert plain(mirror.apply(stored(1))) == [
        ("store", None, S[:1], Tier.DEVICE),
        ("store", S[0], [S[1]], Tier.HOST),
    ]


def test_clearing_a_tier_that_nothing_else_stands_on_is_one_event(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3), stored(1, tier=Tier.HOST))
    assert mirror.apply(cleared(Tier.DEVICE)) == [Clear(Tier.DEVICE)]
    assert mirror.held_blocks == 1


def test_suspects_leave_when_the_engine_has_no_room_for_them(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2), stored(3, first_token=50))
    mirror.capacity_blocks = 3
    mirror.suspect_all()
    assert mirror.apply(stored(1)) == []  # announced again: no suspect any more
    assert mirror.suspect_blocks == 2
    events = mirror.apply(stored(4, first_token=70))
    assert plain(events)[1:] == [("remove", [S[1]], Tier.DEVICE)]  # 2, the oldest suspect
    assert mirror.suspects_removed == 1
    mirror.apply(stored(5, first_token=80), stored(6, first_token=90))
    assert mirror.suspect_blocks == 0
    assert mirror.held_blocks == 4  # 3 has gone too; what is no suspect stays


def test_an_event_that_may_hide_a_removal_makes_suspects(make: Make) -> None:
    mirror = mirror_of(make, stored(1))
    mirror.apply({"type": "BlockRemoved"})
    assert mirror.suspect_blocks == 1


def test_memory_is_bounded(make: Make) -> None:
    mirror = make(blocks_max=3)
    assert plain(mirror.apply(stored(1, 2, 3, 4))) == [("store", None, S[:3], Tier.DEVICE)]
    mirror.apply(wire.stored_by_hash([1], Tier.HOST))
    assert mirror.unindexable == {RefusalReason.MIRROR_FULL: 2}


def test_unrelated_removals_are_one_event(make: Make) -> None:
    mirror = mirror_of(make, stored(1), stored(2, first_token=50))
    assert len(mirror.apply(removed([1]), removed([2]))) == 1
