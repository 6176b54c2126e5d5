"""The mirror against a naive engine that stores, evicts, moves and clears blocks in any order.

The engine is sets of hashes; the blocks that a prompt can reach are computed from scratch each time.
The mirror's events are applied to a naive index, which must be prefix-closed after every single one.
"""

from collections.abc import Callable

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvatlas_events import Clear, Event, Remove, Store, Tier, TierDigest, digest
from kvatlas_hashing import reference
from tests.reference.engine_mirrors import (
    EngineMirror,
    native_mirror,
    specified_mirror,
)
from tests.reference.wire_events import WireEvent, cleared, removed, stored, stored_by_hash

Path = tuple[int, ...]
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple)
TIERS = st.sampled_from([Tier.DEVICE, Tier.DEVICE, Tier.DEVICE, Tier.HOST, Tier.REMOTE])
VARIANTS = st.integers(0, 1)


def sequence(path: Path) -> int:
    """The sequence hash of a path; a block's number is both of its tokens."""
    tokens = [token for number in path for token in (number, number)]
    return reference.sequence_hashes(reference.chunk_hashes(tokens, 2))[-1]


def engine_hash(path: Path, variant: int) -> int:
    """Two engine hashes stand for each path, as with speculative decoding."""
    return int("1" + "".join(map(str, path)) + str(variant))


class Machine(RuleBasedStateMachine):
    make: Callable[[], EngineMirror] = staticmethod(native_mirror)

    def __init__(self) -> None:
        super().__init__()
        self.mirror = self.make()
        self.engine: dict[Tier, dict[int, Path]] = {tier: {} for tier in Tier}
        self.index: dict[Tier, set[int]] = {tier: set() for tier in Tier}
        self.parents: dict[int, int | None] = {}

    def send(self, *events: WireEvent) -> None:
        for event in self.mirror.apply(*events):
            self.replay(event)

    def replay(self, event: Event) -> None:
        match event:
            case Store():
                held = set[int]().union(*self.index.values())
                assert event.parent is None or event.parent in held
                parent = event.parent
                for each in event.sequence_hashes.tolist():
                    assert self.parents[each] == parent
                    self.index[event.tier].add(each)
                    parent = each
            case Remove():
                for each in event.sequence_hashes.tolist():
                    self.index[event.tier].remove(each)
                    self.check_closed()  # tail first: inside an event, too
            case Clear():
                for tier in Tier if event.tier is None else [event.tier]:
                    self.index[tier].clear()
            case _:
                raise AssertionError(event)
        self.check_closed()

    def check_closed(self) -> None:
        union = set[int]().union(*self.index.values())
        assert all(self.parents[each] in union | {None} for each in union)

    def held_anywhere(self) -> set[Path]:
        return {path for held in self.engine.values() for path in held.values()}

    @rule(path=PATHS, variant=VARIANTS, tier=TIERS, start=st.integers(0, 4))
    def engine_stores(self, path: Path, variant: int, tier: Tier, start: int) -> None:
        """Store the end of a path as one chain, below a parent that may not be held."""
        start = min(start, len(path) - 1)
        head = path[:start]
        for depth in range(len(path)):
            parent = sequence(path[:depth]) if depth else None
            self.parents[sequence(path[: depth + 1])] = parent
        steps = [path[: depth + 1] for depth in range(start, len(path))]
        parents = [engine_hash(head, v) for v in (variant, 1 - variant)]
        known = [p for p in parents if any(p in held for held in self.engine.values())]
        if not head or known:
            for step in steps:
                self.engine[tier][engine_hash(step, variant)] = step
        self.send(
            stored(
                [engine_hash(step, variant) for step in steps],
                [token for step in steps for token in (step[-1], step[-1])],
                parent=(known or parents)[0] if head else None,
                tier=tier,
            )
        )

    @precondition(lambda self: any(self.engine.values()))
    @rule(data=st.data(), shallow=st.booleans())
    def engine_evicts(self, data: st.DataObject, *, shallow: bool) -> None:
        tier = data.draw(st.sampled_from([tier for tier, held in self.engine.items() if held]))
        held = sorted(self.engine[tier])[: 3 if shallow else None]  # a head has a short number
        gone = data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=3))
        for each in gone:
            self.engine[tier].pop(each, None)
        self.send(removed(gone, tier))

    @rule(data=st.data(), tier=TIERS, to=TIERS)
    def engine_offloads_without_tokens(self, data: st.DataObject, tier: Tier, to: Tier) -> None:
        held = sorted(self.engine[tier])
        if held:
            moved = data.draw(st.lists(st.sampled_from(held), max_size=3))
            for each in moved:
                self.engine[to][each] = self.engine[tier][each]
            self.send(stored_by_hash(moved, to))

    @precondition(lambda self: len(self.held_anywhere()) > 6)  # let something grow first
    @rule(tier=st.none() | TIERS)
    def engine_clears(self, tier: Tier | None) -> None:
        for each in Tier if tier is None else [tier]:
            self.engine[each].clear()
        self.send(cleared(tier))

    @rule()
    def a_message_was_lost(self) -> None:
        self.mirror.suspect_all()

    @rule(data=st.data())
    def nothing_changes_when_announced_twice(self, data: st.DataObject) -> None:
        tier = data.draw(TIERS)
        held = sorted(self.engine[tier])
        assert self.mirror.apply(stored_by_hash(held, tier)) == []
        assert self.mirror.apply(removed([999_999], tier)) == []

    @invariant()
    def the_index_is_what_prompts_can_reach(self) -> None:
        held = self.held_anywhere()
        reachable = {
            path for path in held if all(path[:depth] in held for depth in range(1, len(path)))
        }
        for tier in Tier:
            expected = {sequence(p) for p in self.engine[tier].values() if p in reachable}
            assert self.index[tier] == expected

    @invariant()
    def snapshot_and_digest_agree_with_the_index(self) -> None:
        snapshot = self.mirror.snapshot()
        assert {tier: set(array.tolist()) for tier, array in snapshot.items()} == {
            tier: hashes for tier, hashes in self.index.items() if hashes
        }
        published = {Tier.DEVICE: np.empty(0, dtype=np.uint64)} | dict(snapshot)
        assert self.mirror.digests() == tuple(
            TierDigest(tier, len(array), digest(array)) for tier, array in published.items()
        )
        assert self.mirror.held_blocks == sum(map(len, self.engine.values()))


class SpecificationMachine(Machine):
    make = staticmethod(specified_mirror)


BOUNDS = settings(max_examples=100, stateful_step_count=40, deadline=None)
Machine.TestCase.settings = BOUNDS
SpecificationMachine.TestCase.settings = BOUNDS
TestMirrorPublishesWhatTheEngineHolds = Machine.TestCase
TestSpecificationPublishesWhatTheEngineHolds = SpecificationMachine.TestCase
