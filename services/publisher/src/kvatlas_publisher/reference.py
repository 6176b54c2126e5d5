"""The specification of the mirror, in pure Python: what of an engine's cache is published. Pure.

The publisher runs the native one (`mirror.py`, the crate `kvatlas-mirror`); one contract suite and
a differential test hold it to this one, which nothing else uses.

**What is held.** Per tier a set of engine hashes, each standing for one sequence hash. A set and
not a count: engines announce the same block twice and remove it once (cache hits reported in full),
so announcing twice changes nothing and one removal ends it. Several engine hashes may stand for one
sequence hash (speculative decoding keys a block by the token after it too): a block is on a tier
for as long as one of them is.

**What is published.** The blocks that a prompt can reach: held, and their parent published, or a
prompt's first block. So the union of all tiers is prefix-closed, which is what makes a look-up by
depth exact; each tier by itself is what the engine says and need not be closed, as when the head of
a prompt was moved to the host and its tail is still on the device. An engine can evict a block
whose descendants it holds; it cannot use them before the gap is stored again. Removing a block's
last tier so takes its published descendants out too, tail first; they are kept, unpublished, and
published again, head first, when the gap is filled. After every single event the set is closed.

**What cannot be known.** A block under a parent that is not held has no known prefix, a token-less
announcement of an unknown hash has no tokens: both are refused and counted, never guessed. Adapter
and salt are a prompt's, so a block takes its parent's.

**Suspects.** After a hole in the engine's stream a removal may have been lost. What is held then is
suspect until it is stored again; when the device tier holds more than the engine has room for, the
oldest suspects were the ones, and are removed.

A held block costs some 450 bytes here, at most 96 in the native one; `blocks_max` bounds them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kvatlas_engines import (
    Cleared,
    EngineEvent,
    EngineHash,
    Reason,
    Removed,
    Stored,
    StoredByHash,
    Tier,
    Unindexable,
)
from kvatlas_events import Event, Hashes, TierDigest
from kvatlas_events import Tier as SaidTier
from kvatlas_hashing import chunk_hashes, sequence_hashes
from kvatlas_publisher.saying import TIERS, Saying

_COUNT_BITS = 32
_COUNT_MASK = (1 << _COUNT_BITS) - 1
_NUMBERS = tuple(map(int, Tier))
_ONE = tuple(1 << (_COUNT_BITS * tier) for tier in Tier)
_ALL = tuple(_COUNT_MASK << (_COUNT_BITS * tier) for tier in Tier)


class _Block:
    """A held block. `counts` packs, per tier, how many engine hashes stand for it."""

    __slots__ = ("cache_salt", "children", "counts", "lora_name", "parent", "published", "sequence")

    def __init__(
        self, sequence: int, parent: int | None, lora_name: str | None, cache_salt: str | None
    ) -> None:
        self.sequence = sequence
        self.parent = parent
        self.lora_name = lora_name
        self.cache_salt = cache_salt
        self.counts = 0
        self.published = False
        self.children: dict[int, _Block] | None = None

    def tiers(self) -> Iterator[int]:
        """The tiers it is on, from near to far."""
        counts = self.counts
        return (tier for tier in _NUMBERS if counts & _ALL[tier])


class Mirror:
    """One engine rank's cache in one life. Not thread-safe.

    Args:
        blocks_max: engine hashes held at most; further stores are refused and counted.
    """

    def __init__(self, *, blocks_max: int = 4_000_000) -> None:
        self.unindexable: Counter[Reason] = Counter()
        """Blocks that were refused, by reason; an event that names no blocks counts as one."""
        self.suspects_removed = 0
        self.capacity_blocks = 0
        """Of the engine's device tier; 0: unknown."""
        self._blocks_max = blocks_max
        self._held: tuple[dict[EngineHash, _Block], ...] = tuple({} for _ in Tier)
        self._suspects: tuple[dict[EngineHash, None], ...] = tuple({} for _ in Tier)
        self._blocks: dict[int, _Block] = {}
        self._orphans: dict[int, dict[int, _Block]] = {}
        """By the sequence hash of a parent that is not held: the children that are."""
        self._published = [0 for _ in Tier]
        self._digests = [0 for _ in Tier]

    # --- what it is told ---

    def apply(self, events: Sequence[EngineEvent]) -> list[Event]:
        """Take a batch's events in order; return what has changed in the published set."""
        said = Saying()
        for event in events:
            match event:
                case Stored():
                    self._on_stored(event, said)
                case Removed():
                    for engine_hash in event.block_hashes:
                        self._drop(engine_hash, event.tier, said)
                case StoredByHash():
                    self._on_stored_by_hash(event, said)
                case Cleared():
                    self._on_cleared(event.tier, said)
                case Unindexable():
                    self._refuse(event.reason, event.blocks)
                    if event.may_hide_removal:
                        self.suspect_all()
        self._remove_excess(said)
        return said.end()

    def suspect_all(self) -> None:
        """Something was lost that may have been a removal."""
        for held, suspects in zip(self._held, self._suspects, strict=True):
            if len(suspects) < len(held):
                for engine_hash in held:
                    suspects.setdefault(engine_hash)

    # --- what it can be asked ---

    @property
    def held_blocks(self) -> int:
        """Engine hashes held, published or not, over all tiers."""
        return sum(map(len, self._held))

    @property
    def suspect_blocks(self) -> int:
        """Engine hashes whose removal may have been lost."""
        return sum(map(len, self._suspects))

    @property
    def unreachable_blocks(self) -> int:
        """Sequence hashes held below a gap, and so not published. Walks the whole mirror."""
        return sum(not block.published for block in self._blocks.values())

    def digests(self) -> tuple[TierDigest, ...]:
        """Number and XOR of the published sequence hashes: of the device, and of tiers that have any."""
        return tuple(
            TierDigest(TIERS[tier], self._published[tier], self._digests[tier])
            for tier in Tier
            if self._published[tier] or tier is Tier.DEVICE
        )

    def snapshot(self) -> Mapping[SaidTier, Hashes]:
        """Copy the published set, by tier."""
        return {
            TIERS[tier]: np.fromiter(
                (
                    block.sequence
                    for block in self._blocks.values()
                    if block.published and block.counts & _ALL[tier]
                ),
                dtype=np.uint64,
                count=self._published[tier],
            )
            for tier in Tier
            if self._published[tier]
        }

    # --- stores ---

    def _on_stored(self, event: Stored, said: Saying) -> None:
        parent: _Block | None = None
        lora_name, cache_salt = event.lora_name, event.cache_salt
        if event.parent is not None:
            parent = self._find(event.parent)
            if parent is None:
                self._refuse(Reason.UNKNOWN_PARENT, len(event.block_hashes))
                return
            if (lora_name or parent.lora_name) != parent.lora_name or (
                cache_salt or parent.cache_salt
            ) != parent.cache_salt:
                self._refuse(Reason.CONFLICTING_PREFIX, len(event.block_hashes))
                return
            lora_name, cache_salt = parent.lora_name, parent.cache_salt
        sequences = _sequences(event, parent, lora_name, cache_salt)
        before = None if parent is None else parent.sequence
        for position, engine_hash in enumerate(event.block_hashes):
            if self.held_blocks >= self._blocks_max:
                self._refuse(Reason.MIRROR_FULL, len(event.block_hashes) - position)
                return
            sequence = sequences[position]
            self._forget_other(engine_hash, sequence, said)
            if engine_hash in self._held[event.tier]:
                self._suspects[event.tier].pop(engine_hash, None)
            else:
                block = self._blocks.get(sequence)
                if block is None:
                    block = self._link(_Block(sequence, before, lora_name, cache_salt))
                self._hold(engine_hash, block, event.tier, said)
            before = sequence

    def _on_stored_by_hash(self, event: StoredByHash, said: Saying) -> None:
        for engine_hash in event.block_hashes:
            block = self._find(engine_hash)
            if block is None:
                self._refuse(Reason.UNKNOWN_HASH, 1)
            elif engine_hash in self._held[event.tier]:
                self._suspects[event.tier].pop(engine_hash, None)
            elif self.held_blocks >= self._blocks_max:
                self._refuse(Reason.MIRROR_FULL, 1)
            else:
                self._hold(engine_hash, block, event.tier, said)

    def _find(self, engine_hash: EngineHash) -> _Block | None:
        for held in self._held:
            block = held.get(engine_hash)
            if block is not None:
                return block
        return None

    def _forget_other(self, engine_hash: EngineHash, sequence: int, said: Saying) -> None:
        """Drop what a hash stood for, if it comes back as other tokens: the newer word counts."""
        known = self._find(engine_hash)
        if known is not None and known.sequence != sequence:
            self._refuse(Reason.CONFLICTING_PREFIX, 1)
            for tier in Tier:
                self._drop(engine_hash, tier, said)

    def _link(self, block: _Block) -> _Block:
        """Hang a new block between its parent and the children that waited for it."""
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

    def _hold(self, engine_hash: EngineHash, block: _Block, tier: Tier, said: Saying) -> None:
        is_new_tier = not block.counts & _ALL[tier]
        block.counts += _ONE[tier]
        self._held[tier][engine_hash] = block
        if block.published:
            if is_new_tier:
                self._say_stored(block, tier, said)
            return
        above = None if block.parent is None else self._blocks.get(block.parent)
        if block.parent is None or (above is not None and above.published):
            self._publish(block, said)

    def _publish(self, block: _Block, said: Saying) -> None:
        """Publish a block that has become reachable, and all below it, head first."""
        if not block.children:  # nearly always
            block.published = True
            for tier in block.tiers():
                self._say_stored(block, tier, said)
            return
        on_more_tiers: list[_Block] = []
        for each in _subtree(block):
            each.published = True
            tiers = each.tiers()
            self._say_stored(each, next(tiers), said)
            if next(tiers, None) is not None:
                on_more_tiers.append(each)
        for tier in Tier:
            for each in on_more_tiers:
                if each.counts & _ALL[tier] and next(each.tiers()) != tier:
                    self._say_stored(each, tier, said)

    # --- removals ---

    def _drop(self, engine_hash: EngineHash, tier: Tier, said: Saying) -> None:
        """Take one engine hash from one tier; unknown ones were never indexed."""
        block = self._held[tier].pop(engine_hash, None)
        if block is None:
            return
        self._suspects[tier].pop(engine_hash, None)
        block.counts -= _ONE[tier]
        if block.counts & _ALL[tier]:
            return
        if block.published:
            if not block.counts:
                self._unpublish_below(block, said)
                block.published = False
            self._say_removed(block, tier, said)
        if not block.counts:
            self._unlink(block)

    def _unpublish_below(self, block: _Block, said: Saying) -> None:
        if not block.children:  # nearly always
            return
        below = list(_subtree(block))[1:]
        for each in reversed(below):
            each.published = False
            for tier in each.tiers():
                self._say_removed(each, tier, said)

    def _unlink(self, block: _Block) -> None:
        del self._blocks[block.sequence]
        if block.parent is not None:
            siblings = self._siblings(block.parent)
            del siblings[block.sequence]
            if not siblings:
                self._orphans.pop(block.parent, None)
        if block.children:
            self._orphans[block.sequence] = block.children

    def _remove_excess(self, said: Saying) -> None:
        held, suspects = self._held[Tier.DEVICE], self._suspects[Tier.DEVICE]
        while self.capacity_blocks and len(held) > self.capacity_blocks and suspects:
            self.suspects_removed += 1
            self._drop(next(iter(suspects)), Tier.DEVICE, said)

    def _on_cleared(self, tier: Tier | None, said: Saying) -> None:
        if tier is not None:
            self._clear_tier(tier, said)
            return
        if any(self._published):
            said.clear(None)
        for by_tier in (*self._held, *self._suspects, self._blocks, self._orphans):
            by_tier.clear()
        self._published = [0 for _ in Tier]
        self._digests = [0 for _ in Tier]

    def _clear_tier(self, tier: Tier, said: Saying) -> None:
        """Empty one tier; first take out what only its blocks made reachable."""
        only_here = ~_ALL[tier]
        cut: dict[int, _Block] = {}
        for first in [each for each in self._blocks.values() if each.parent is None]:
            for each in _subtree(first):
                if each.published and (not each.counts & only_here or each.parent in cut):
                    cut[each.sequence] = each
        # One event clears the tier, unless a block of another tier lies between: then the cut
        # blocks go one by one, tail first, and the set stays closed at every border.
        one_by_one = any(block.counts & only_here for block in cut.values())
        for block in reversed(cut.values()):
            block.published = False
            for each_tier in block.tiers() if one_by_one else ():
                self._say_removed(block, each_tier, said)
        if self._published[tier]:
            said.clear(tier)
        self._published[tier] = self._digests[tier] = 0
        for block in self._held[tier].values():
            block.counts &= only_here
        self._held[tier].clear()
        self._suspects[tier].clear()
        for block in [each for each in self._blocks.values() if not each.counts]:
            self._unlink(block)

    # --- what it says ---

    def _say_stored(self, block: _Block, tier: int, said: Saying) -> None:
        self._published[tier] += 1
        self._digests[tier] ^= block.sequence
        said.store(block.parent, block.sequence, tier)

    def _say_removed(self, block: _Block, tier: int, said: Saying) -> None:
        self._published[tier] -= 1
        self._digests[tier] ^= block.sequence
        said.remove(block.sequence, tier)

    def _refuse(self, reason: Reason, blocks: int) -> None:
        self.unindexable[reason] += max(blocks, 1)


def _subtree(block: _Block) -> Iterator[_Block]:
    """A block and all held below it, each after its parent."""
    waiting = [block]
    while waiting:
        each = waiting.pop()
        yield each
        if each.children:
            waiting.extend(reversed(each.children.values()))


def _sequences(
    event: Stored, parent: _Block | None, lora_name: str | None, cache_salt: str | None
) -> list[int]:
    """Return the sequence hashes of a stored chain, continued from its parent's."""
    chunks = chunk_hashes(
        event.tokens.reshape(-1),
        event.tokens.shape[1],
        lora_name=lora_name,
        cache_salt=cache_salt,
        item_hashes=event.items,
    )
    if parent is None:
        return sequence_hashes(chunks).tolist()
    # A chain's first sequence hash is its first element: put the parent's there.
    chain = np.concatenate([np.array([parent.sequence], dtype=np.uint64), chunks])
    return sequence_hashes(chain)[1:].tolist()
