"""The mirror's rules, one by one, for the specification and for the native one.

Hashes are those of the reference contract.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import pytest

from kvatlas_engines import (
    Cleared,
    EngineEvent,
    Reason,
    Removed,
    Stored,
    StoredByHash,
    Tier,
    Unindexable,
)
from kvatlas_events import Clear, Event, Hashes, Remove, Store, TierDigest
from kvatlas_events import Tier as Said
from kvatlas_hashing import reference
from kvatlas_publisher import reference as specification
from kvatlas_publisher.mirror import Mirror as NativeMirror


def stored(
    *hashes: int,
    parent: int | None = None,
    first_token: int = 0,
    tier: Tier = Tier.DEVICE,
    lora: str | None = None,
    salt: str | None = None,
    items: tuple[tuple[int, ...], ...] | None = None,
) -> Stored:
    tokens = np.arange(first_token, first_token + 2 * len(hashes), dtype=np.uint32)
    return Stored(hashes, parent, tokens.reshape(-1, 2), tier, lora, salt, items)


def removed(*hashes: int, tier: Tier = Tier.DEVICE) -> Removed:
    return Removed(hashes, tier)


def sequences(blocks: int, **prompt: str | None) -> list[int]:
    return reference.sequence_hashes(
        reference.chunk_hashes(list(range(2 * blocks)), 2, **prompt)  # pyright: ignore[reportArgumentType]
    )


def said(events: list[Event]) -> list[object]:
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


class Mirror(Protocol):
    """What both mirrors are to these tests."""

    capacity_blocks: int

    def apply(self, events: Sequence[EngineEvent]) -> list[Event]: ...
    def suspect_all(self) -> None: ...
    def digests(self) -> tuple[TierDigest, ...]: ...
    def snapshot(self) -> Mapping[Said, Hashes]: ...
    @property
    def unindexable(self) -> Counter[Reason]: ...
    @property
    def suspects_removed(self) -> int: ...
    @property
    def held_blocks(self) -> int: ...
    @property
    def suspect_blocks(self) -> int: ...
    @property
    def unreachable_blocks(self) -> int: ...


Make = Callable[..., Mirror]


@pytest.fixture(params=[specification.Mirror, NativeMirror], ids=["specification", "native"])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def mirror_of(make: Make, *events: EngineEvent) -> Mirror:
    mirror = make()
    mirror.apply(events)
    return mirror


S = sequences(4)


def test_a_chain_is_one_store_and_its_continuation_names_its_parent(make: Make) -> None:
    mirror = make()
    assert said(mirror.apply([stored(1, 2)])) == [("store", None, S[:2], Said.DEVICE)]
    assert said(mirror.apply([stored(3, 4, parent=2, first_token=4)])) == [
        ("store", S[1], S[2:], Said.DEVICE)
    ]


def test_evicting_a_head_takes_its_tail_out_and_storing_it_again_brings_it_back(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3, 4))
    assert said(mirror.apply([removed(2)])) == [("remove", [S[3], S[2], S[1]], Said.DEVICE)]
    assert mirror.unreachable_blocks == 2
    assert said(mirror.apply([stored(2, parent=1, first_token=2)])) == [
        ("store", S[0], S[1:], Said.DEVICE)
    ]


def test_moving_a_head_to_the_host_keeps_its_tail_published(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3))
    moved = mirror.apply([stored(1, tier=Tier.HOST), removed(1)])
    assert said(moved) == [("store", None, S[:1], Said.HOST), ("remove", S[:1], Said.DEVICE)]


def test_a_tail_that_comes_back_from_two_tiers_is_said_on_both(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3), stored(2, parent=1, first_token=2, tier=Tier.DISK))
    assert said(mirror.apply([removed(1)])) == [
        ("remove", [S[2], S[1]], Said.DEVICE),
        ("remove", [S[1]], Said.DISK),
        ("remove", [S[0]], Said.DEVICE),
    ]
    assert said(mirror.apply([stored(1)])) == [
        ("store", None, S[:3], Said.DEVICE),
        ("store", S[0], [S[1]], Said.DISK),
    ]


def test_storing_twice_and_removing_once_is_removed(make: Make) -> None:
    mirror = mirror_of(make, stored(1))
    assert mirror.apply([stored(1)]) == []
    assert said(mirror.apply([removed(1)])) == [("remove", S[:1], Said.DEVICE)]
    assert mirror.apply([removed(1)]) == []


def test_two_engine_hashes_of_one_block_hold_it_until_both_are_gone(make: Make) -> None:
    mirror = mirror_of(make, stored(1), stored(11))
    assert mirror.apply([removed(1)]) == []
    assert said(mirror.apply([removed(11)])) == [("remove", S[:1], Said.DEVICE)]


def test_a_child_inherits_adapter_and_salt(make: Make) -> None:
    mirror = mirror_of(make, stored(1, lora="sql", salt="tenant"))
    expected = sequences(2, lora_name="sql", cache_salt="tenant")
    assert said(mirror.apply([stored(2, parent=1, first_token=2)])) == [
        ("store", expected[0], expected[1:], Said.DEVICE)
    ]
    assert expected[0] != S[0]


@pytest.mark.parametrize("prompt", [{"lora": "other"}, {"salt": "other"}])
def test_a_child_of_another_adapter_or_salt_is_refused(make: Make, prompt: dict[str, str]) -> None:
    mirror = mirror_of(make, stored(1, lora="sql"))
    assert mirror.apply([stored(2, parent=1, first_token=2, **prompt)]) == []  # pyright: ignore[reportArgumentType]
    assert mirror.unindexable == {Reason.CONFLICTING_PREFIX: 1}


def test_items_enter_the_hash_of_their_block(make: Make) -> None:
    mirror = make()
    expected = reference.sequence_hashes(
        reference.chunk_hashes([0, 1, 2, 3], 2, item_hashes=[None, [7, 5]])
    )
    assert said(mirror.apply([stored(1, 2, items=((), (7, 5)))])) == [
        ("store", None, expected, Said.DEVICE)
    ]


def test_what_has_no_known_prefix_or_tokens_is_counted_not_guessed(make: Make) -> None:
    mirror = make()
    unread = Unindexable(Reason.EMBEDS, 5)
    nothing = Unindexable(Reason.UNKNOWN_EVENT, 0)
    offload = StoredByHash((8, 9), Tier.HOST)
    assert mirror.apply([stored(2, 3, parent=1), offload, unread, nothing]) == []
    assert mirror.unindexable == {
        Reason.UNKNOWN_PARENT: 2,
        Reason.UNKNOWN_HASH: 2,
        Reason.EMBEDS: 5,
        Reason.UNKNOWN_EVENT: 1,
    }


def test_a_tokenless_offload_is_resolved_by_its_hash(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2))
    offloaded = mirror.apply([StoredByHash((1, 2), Tier.HOST)])
    assert said(offloaded) == [("store", None, S[:2], Said.HOST)]


def test_a_hash_that_comes_back_as_other_tokens_stands_for_the_newer_ones(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2))
    other = reference.sequence_hashes(reference.chunk_hashes([50, 51], 2))
    assert said(mirror.apply([stored(1, first_token=50)])) == [
        ("remove", [S[1], S[0]], Said.DEVICE),
        ("store", None, other, Said.DEVICE),
    ]
    assert mirror.unindexable == {Reason.CONFLICTING_PREFIX: 1}


def test_clearing_says_so_once(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2), stored(1, tier=Tier.HOST))
    assert mirror.apply([Cleared(None)]) == [Clear(None)]
    assert mirror.apply([Cleared(None)]) == []
    assert mirror.held_blocks == 0


def test_digests_name_the_device_even_when_nothing_is_held(make: Make) -> None:
    # An indexer with left-over blocks would otherwise have nothing to compare them with.
    empty = TierDigest(Said.DEVICE, 0, 0)
    mirror = make()
    assert mirror.digests() == (empty,)
    mirror.apply([stored(1, tier=Tier.HOST)])
    assert mirror.digests() == (empty, TierDigest(Said.HOST, 1, S[0]))
    mirror.apply([Cleared(None)])
    assert mirror.digests() == (empty,)


def test_clearing_a_tier_first_takes_out_what_it_alone_made_reachable(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3), stored(2, parent=1, first_token=2, tier=Tier.HOST))
    assert said(mirror.apply([Cleared(Tier.DEVICE)])) == [
        ("remove", [S[2], S[1]], Said.DEVICE),
        ("remove", [S[1]], Said.HOST),
        ("remove", [S[0]], Said.DEVICE),
    ]
    assert said(mirror.apply([stored(1)])) == [
        ("store", None, S[:1], Said.DEVICE),
        ("store", S[0], [S[1]], Said.HOST),
    ]


def test_clearing_a_tier_that_nothing_else_stands_on_is_one_event(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2, 3), stored(1, tier=Tier.HOST))
    assert mirror.apply([Cleared(Tier.DEVICE)]) == [Clear(Said.DEVICE)]
    assert mirror.held_blocks == 1


def test_suspects_leave_when_the_engine_has_no_room_for_them(make: Make) -> None:
    mirror = mirror_of(make, stored(1, 2), stored(3, first_token=50))
    mirror.capacity_blocks = 3
    mirror.suspect_all()
    assert mirror.apply([stored(1)]) == []  # said again: no suspect any more
    assert mirror.suspect_blocks == 2
    events = mirror.apply([stored(4, first_token=70)])
    assert said(events)[1:] == [("remove", [S[1]], Said.DEVICE)]  # 2, the oldest suspect
    assert mirror.suspects_removed == 1
    mirror.apply([stored(5, first_token=80), stored(6, first_token=90)])
    assert mirror.suspect_blocks == 0
    assert mirror.held_blocks == 4  # 3 has gone too; what is no suspect stays


def test_an_event_that_may_hide_a_removal_makes_suspects(make: Make) -> None:
    mirror = mirror_of(make, stored(1))
    mirror.apply([Unindexable(Reason.MALFORMED_EVENT, 0, may_hide_removal=True)])
    assert mirror.suspect_blocks == 1


def test_memory_is_bounded(make: Make) -> None:
    mirror = make(blocks_max=3)
    assert said(mirror.apply([stored(1, 2, 3, 4)])) == [("store", None, S[:3], Said.DEVICE)]
    mirror.apply([StoredByHash((1,), Tier.HOST)])
    assert mirror.unindexable == {Reason.MIRROR_FULL: 2}


def test_unrelated_removals_are_one_event(make: Make) -> None:
    mirror = mirror_of(make, stored(1), stored(2, first_token=50))
    assert len(mirror.apply([removed(1), removed(2)])) == 1
