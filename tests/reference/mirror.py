"""The specification of the mirror: the part of an engine's cache that is published. Pure.

The publisher runs the native mirror (`libs/mirror`); unit tests and a differential test hold it to
this one.

**Held.** Each tier has a set of engine hashes, and each hash stands for one sequence hash. It is a
set, not a count: engines announce a block twice and remove it once (cache hits reported in full), so a
second announcement changes nothing and one removal ends it. Several engine hashes may stand for one
sequence hash (with speculative decoding a block's engine hash covers the token after it too): a block
is on a tier for as long as one of them is.

**Published.** A block is published if a prompt can reach it: it is held, and it begins a prompt or its
parent is published. So the union of all tiers is prefix-closed, which makes a look-up by depth exact.
One tier alone need not be closed, as when the head of a prompt was moved to the host and its tail is
still on the device. An engine can evict a block whose descendants it holds; it cannot use them before
the gap is stored again. So removing a block from its last tier unpublishes its descendants too, tail
first; they stay held, and are published again, head first, when the gap is filled. The set is closed
after every single event.

**Refused.** A block under a parent that is not held has no known prefix, and an unknown hash without
tokens has no tokens: both are refused and counted, never guessed. Adapter and salt belong to a prompt,
so a block takes its parent's.

**Suspect.** After a hole in the engine's stream a removal may have been lost. All blocks are suspect
then, until they are stored again. When the device tier holds more than the engine has room for, the
oldest suspects are removed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kvatlas_engines import RefusalReason
from kvatlas_events import Event, Hashes, Tier, TierDigest
from kvatlas_hashing import chunk_hashes, sequence_hashes
from tests.reference.engines.events import (
    Cleared,
    EngineEvent,
    EngineHash,
    Removed,
    Stored,
    StoredByHash,
    Unindexable,
)
from tests.reference.pending_events import PendingEvents


class _Block:
    """A held block. `counts`: the number of engine hashes that stand for it, by tier."""

    def __init__(
        self, sequence: int, parent: int | None, lora_name: str | None, cache_salt: str | None
    ) -> None:
        self.sequence = sequence
        self.parent = parent
        self.lora_name = lora_name
        self.cache_salt = cache_salt
        self.counts: Counter[Tier] = Counter()
        self.published = False
        self.children: dict[int, _Block] | None = None

    def is_on(self, tier: Tier) -> bool:
        return self.counts[tier] > 0

    def tiers(self) -> list[Tier]:
        """The tiers that the block is on, from near to far."""
        return [tier for tier in Tier if self.is_on(tier)]


class Mirror:
    """One engine rank's cache, from one start of the engine to the next."""

    def __init__(self, *, blocks_max: int = 4_000_000) -> None:
        self.unindexable: Counter[RefusalReason] = Counter()
        """The number of blocks refused; an event that names no blocks counts as one."""
        self.suspects_removed = 0
        self.capacity_blocks = 0
        """The size of the engine's device tier, in blocks; 0: unknown."""
        self._blocks_max = blocks_max
        self._held: dict[Tier, dict[EngineHash, _Block]] = {tier: {} for tier in Tier}
        self._suspects: dict[Tier, dict[EngineHash, None]] = {tier: {} for tier in Tier}
        self._blocks: dict[int, _Block] = {}
        self._orphans: dict[int, dict[int, _Block]] = {}
        """Held children of parents that are not held, by the parent's sequence hash."""
        self._published = dict.fromkeys(Tier, 0)
        self._digests = dict.fromkeys(Tier, 0)

    def apply_events(self, events: Sequence[EngineEvent]) -> list[Event]:
        """Apply a message's events in order; return the changes of the published set."""
        pending = PendingEvents()
        for event in events:
            match event:
                case Stored():
                    self._on_stored(event, pending)
                case Removed():
                    for engine_hash in event.block_hashes:
                        self._drop(engine_hash, event.tier, pending)
                case StoredByHash():
                    self._on_stored_by_hash(event, pending)
                case Cleared():
                    self._on_cleared(event.tier, pending)
                case Unindexable():
                    self._refuse(event.reason, event.blocks)
                    if event.may_hide_removal:
                        self.suspect_all()
        self._remove_excess(pending)
        return pending.end()

    def suspect_all(self) -> None:
        """Make every block suspect: a message was lost that may have been a removal."""
        for tier, held in self._held.items():
            suspects = self._suspects[tier]
            if len(suspects) < len(held):
                for engine_hash in held:
                    suspects.setdefault(engine_hash)

    # --- queries ---

    @property
    def held_blocks(self) -> int:
        """The number of engine hashes held, published or not, over all tiers."""
        return sum(map(len, self._held.values()))

    @property
    def suspect_blocks(self) -> int:
        """The number of engine hashes whose removal may have been lost."""
        return sum(map(len, self._suspects.values()))

    def unreachable_blocks(self) -> int:
        """The number of sequence hashes held below a gap, and so not published."""
        return sum(not block.published for block in self._blocks.values())

    def digests(self) -> tuple[TierDigest, ...]:
        """The published set's digests: the device's, and those of other tiers that hold any block."""
        return tuple(
            TierDigest(tier, self._published[tier], self._digests[tier])
            for tier in Tier
            if self._published[tier] or tier is Tier.DEVICE
        )

    def snapshot(self) -> Mapping[Tier, Hashes]:
        """Copy the published set, by tier."""
        return {
            tier: np.array(
                [
                    block.sequence
                    for block in self._blocks.values()
                    if block.published and block.is_on(tier)
                ],
                dtype=np.uint64,
            )
            for tier in Tier
            if self._published[tier]
        }

    # --- stores ---

    def _on_stored(self, event: Stored, pending: PendingEvents) -> None:
        parent: _Block | None = None
        lora_name, cache_salt = event.lora_name, event.cache_salt
        if event.parent is not None:
            parent = self._find(event.parent)
            if parent is None:
                self._refuse(RefusalReason.UNKNOWN_PARENT, len(event.block_hashes))
                return
            if (lora_name or parent.lora_name) != parent.lora_name or (
                cache_salt or parent.cache_salt
            ) != parent.cache_salt:
                self._refuse(RefusalReason.CONFLICTING_PREFIX, len(event.block_hashes))
                return
            lora_name, cache_salt = parent.lora_name, parent.cache_salt
        sequences = _sequences(event, parent, lora_name, cache_salt)
        before = None if parent is None else parent.sequence
        for position, engine_hash in enumerate(event.block_hashes):
            if self.held_blocks >= self._blocks_max:
                self._refuse(RefusalReason.MIRROR_FULL, len(event.block_hashes) - position)
                return
            sequence = sequences[position]
            self._forget_other(engine_hash, sequence, pending)
            if engine_hash in self._held[event.tier]:
                self._suspects[event.tier].pop(engine_hash, None)
            else:
                block = self._blocks.get(sequence)
                if block is None:
                    block = self._link(_Block(sequence, before, lora_name, cache_salt))
                self._hold(engine_hash, block, event.tier, pending)
            before = sequence

    def _on_stored_by_hash(self, event: StoredByHash, pending: PendingEvents) -> None:
        for engine_hash in event.block_hashes:
            block = self._find(engine_hash)
            if block is None:
                self._refuse(RefusalReason.UNKNOWN_HASH, 1)
            elif engine_hash in self._held[event.tier]:
                self._suspects[event.tier].pop(engine_hash, None)
            elif self.held_blocks >= self._blocks_max:
                self._refuse(RefusalReason.MIRROR_FULL, 1)
            else:
                self._hold(engine_hash, block, event.tier, pending)

    def _find(self, engine_hash: EngineHash) -> _Block | None:
        for held in self._held.values():
            block = held.get(engine_hash)
            if block is not None:
                return block
        return None

    def _forget_other(self, engine_hash: EngineHash, sequence: int, pending: PendingEvents) -> None:
        """Drop a hash that comes back as other tokens. The newer announcement counts."""
        known = self._find(engine_hash)
        if known is not None and known.sequence != sequence:
            self._refuse(RefusalReason.CONFLICTING_PREFIX, 1)
            for tier in Tier:
                self._drop(engine_hash, tier, pending)

    def _link(self, block: _Block) -> _Block:
        """Link a new block with its parent and with the children that were held before it."""
        self._blocks[block.sequence] = block
        block.children = self._orphans.pop(block.sequence, None)
        if block.parent is not None:
            self._siblings(block.parent)[block.sequence] = block
        return block

    def _siblings(self, parent: int) -> dict[int, _Block]:
        above = self._blocks.get(parent)
        if above is None:
            return self._orphans.setdefault(parent, {})
        if above.children is None:
            above.children = {}
        return above.children

    def _hold(
        self, engine_hash: EngineHash, block: _Block, tier: Tier, pending: PendingEvents
    ) -> None:
        is_new_tier = not block.is_on(tier)
        block.counts[tier] += 1
        self._held[tier][engine_hash] = block
        if block.published:
            if is_new_tier:
                self._emit_store(block, tier, pending)
            return
        above = None if block.parent is None else self._blocks.get(block.parent)
        if block.parent is None or (above is not None and above.published):
            self._publish(block, pending)

    def _publish(self, block: _Block, pending: PendingEvents) -> None:
        """Publish a block that has become reachable, and its descendants, head first."""
        on_more_tiers: list[_Block] = []
        for each in _subtree(block):
            each.published = True
            self._emit_store(each, each.tiers()[0], pending)
            if len(each.tiers()) > 1:
                on_more_tiers.append(each)
        for tier in Tier:
            for each in on_more_tiers:
                if tier in each.tiers()[1:]:
                    self._emit_store(each, tier, pending)

    # --- removals ---

    def _drop(self, engine_hash: EngineHash, tier: Tier, pending: PendingEvents) -> None:
        """Remove one engine hash from one tier, if it is there."""
        block = self._held[tier].pop(engine_hash, None)
        if block is None:
            return
        self._suspects[tier].pop(engine_hash, None)
        block.counts[tier] -= 1
        if block.is_on(tier):
            return
        if block.published:
            if not block.tiers():
                self._unpublish_below(block, pending)
                block.published = False
            self._emit_remove(block, tier, pending)
        if not block.tiers():
            self._unlink(block)

    def _unpublish_below(self, block: _Block, pending: PendingEvents) -> None:
        below = list(_subtree(block))[1:]
        for each in reversed(below):
            each.published = False
            for tier in each.tiers():
                self._emit_remove(each, tier, pending)

    def _unlink(self, block: _Block) -> None:
        del self._blocks[block.sequence]
        if block.parent is not None:
            siblings = self._siblings(block.parent)
            del siblings[block.sequence]
            if not siblings:
                self._orphans.pop(block.parent, None)
        if block.children:
            self._orphans[block.sequence] = block.children

    def _remove_excess(self, pending: PendingEvents) -> None:
        held, suspects = self._held[Tier.DEVICE], self._suspects[Tier.DEVICE]
        while self.capacity_blocks and len(held) > self.capacity_blocks and suspects:
            self.suspects_removed += 1
            self._drop(next(iter(suspects)), Tier.DEVICE, pending)

    def _on_cleared(self, tier: Tier | None, pending: PendingEvents) -> None:
        if tier is not None:
            self._clear_tier(tier, pending)
            return
        if any(self._published.values()):
            pending.clear(None)
        for each in (*self._held.values(), *self._suspects.values(), self._blocks, self._orphans):
            each.clear()
        self._published = dict.fromkeys(Tier, 0)
        self._digests = dict.fromkeys(Tier, 0)

    def _clear_tier(self, tier: Tier, pending: PendingEvents) -> None:
        """Empty one tier. First remove the blocks that only this tier made reachable."""
        cut: dict[int, _Block] = {}
        for first in [each for each in self._blocks.values() if each.parent is None]:
            for each in _subtree(first):
                if each.published and (each.tiers() == [tier] or each.parent in cut):
                    cut[each.sequence] = each
        # One event clears the tier, unless a block of another tier is among the cut ones. Then these
        # are removed one by one, tail first, so that the set is prefix-closed after every event.
        one_by_one = any(block.tiers() != [tier] for block in cut.values())
        for block in reversed(cut.values()):
            block.published = False
            for each_tier in block.tiers() if one_by_one else ():
                self._emit_remove(block, each_tier, pending)
        if self._published[tier]:
            pending.clear(tier)
        self._published[tier] = self._digests[tier] = 0
        for block in self._held[tier].values():
            block.counts[tier] = 0
        self._held[tier].clear()
        self._suspects[tier].clear()
        for block in [each for each in self._blocks.values() if not each.tiers()]:
            self._unlink(block)

    # --- pending events ---

    def _emit_store(self, block: _Block, tier: Tier, pending: PendingEvents) -> None:
        self._published[tier] += 1
        self._digests[tier] ^= block.sequence
        pending.store(block.parent, block.sequence, tier)

    def _emit_remove(self, block: _Block, tier: Tier, pending: PendingEvents) -> None:
        self._published[tier] -= 1
        self._digests[tier] ^= block.sequence
        pending.remove(block.sequence, tier)

    def _refuse(self, reason: RefusalReason, blocks: int) -> None:
        self.unindexable[reason] += max(blocks, 1)


def _subtree(block: _Block) -> Iterator[_Block]:
    """A block and its held descendants, each after its parent."""
    waiting = [block]
    while waiting:
        each = waiting.pop()
        yield each
        if each.children:
            waiting.extend(reversed(each.children.values()))


def _sequences(
    event: Stored, parent: _Block | None, lora_name: str | None, cache_salt: str | None
) -> list[int]:
    """Return the sequence hashes of a stored chain, which continue the parent's."""
    chunks = chunk_hashes(
        event.tokens.reshape(-1),
        event.tokens.shape[1],
        lora_name=lora_name,
        cache_salt=cache_salt,
        item_hashes=event.items,
    )
    if parent is None:
        return sequence_hashes(chunks).tolist()
    # A chain's first sequence hash is its first chunk hash, so the parent's goes there.
    chain = np.concatenate([np.array([parent.sequence], dtype=np.uint64), chunks])
    return sequence_hashes(chain)[1:].tolist()
