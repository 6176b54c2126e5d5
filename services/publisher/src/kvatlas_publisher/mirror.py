"""The publisher's picture of its engine's cache, and what is to be said of it: the native mirror.

`reference.py` is the specification of what is published and why; this is the same, fast and small:
an engine's payloads go in as they came off the socket, records come out, and no block becomes a
Python object on the way. Events that another reader has decoded already can be put in, too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

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
from kvatlas_events import Tier as SaidTier
from kvatlas_native import EngineMirror, Heard, Memory
from kvatlas_publisher.saying import TIERS


class Mirror:
    """One engine rank's cache in one life. Not thread-safe: while a thread asks, nobody tells it.

    What it says waits, in order, until it is sealed into records or taken as events.

    Args:
        engine: whose payloads `tell` gets.
        block_size: tokens of a block, in payloads.
        blocks_max: engine hashes held at most; further stores are refused and counted.
        memory: shared by the mirrors of a process; None: that of its other things.
    """

    def __init__(
        self,
        *,
        engine: str = "vllm",
        block_size: int = 16,
        blocks_max: int = 4_000_000,
        memory: Memory | None = None,
    ) -> None:
        self._native = EngineMirror(
            engine=engine, block_size=block_size, blocks_max=blocks_max, memory=memory
        )

    # --- over a restart ---

    def export_state(self) -> memoryview:
        """Return what is held, for `restored`; what waits to be sealed is not in it."""
        return self._native.export_state().data

    @classmethod
    def restored(
        cls,
        state: bytes,
        *,
        engine: str,
        block_size: int,
        blocks_max: int,
        memory: Memory | None = None,
    ) -> Self:
        """Return the mirror that `export_state` was asked of; the rest as in `__init__`.

        Raises:
            ValueError: it is damaged, of other settings, or larger than allowed.
        """
        mirror = cls(engine=engine, block_size=block_size, blocks_max=blocks_max)
        mirror._native = EngineMirror.import_state(
            state, engine=engine, block_size=block_size, blocks_max=blocks_max, memory=memory
        )
        return mirror

    # --- what it is told ---

    def tell(self, payloads: Sequence[bytes], dp_rank: int) -> Heard:
        """Take messages' payloads in order, until one that names another rank."""
        return self._native.tell(payloads, dp_rank)

    def put(self, events: Sequence[EngineEvent]) -> None:
        """Take one message's events, decoded already, in order."""
        native = self._native
        for event in events:
            match event:
                case Stored():
                    native.stored(
                        event.block_hashes,
                        event.parent,
                        event.tokens.reshape(-1),
                        event.tier,
                        lora_name=event.lora_name,
                        cache_salt=event.cache_salt,
                        items=event.items,
                    )
                case Removed():
                    native.removed(event.block_hashes, event.tier)
                case StoredByHash():
                    native.stored_by_hash(event.block_hashes, event.tier)
                case Cleared():
                    native.cleared(event.tier)
                case Unindexable():
                    native.refused(
                        event.reason, event.blocks, may_hide_removal=event.may_hide_removal
                    )
        native.apply()

    def apply(self, events: Sequence[EngineEvent]) -> list[Event]:
        """Take one message's events; return what they changed, which must be all that waits."""
        self.put(events)
        return self.take()

    def suspect_all(self) -> None:
        """Something was lost that may have been a removal."""
        self._native.suspect_all()

    # --- what it has to say ---

    @property
    def pending_events(self) -> int:
        """What was said and is in no record yet."""
        return self._native.pending_events

    @property
    def is_batch_full(self) -> bool:
        """What waits fills a batch."""
        return self._native.is_batch_full

    def seal(self, header: bytes, first_event_id: int) -> list[tuple[int, bytes]]:
        """Return the records of all that waits, in order, each with its number of events."""
        return self._native.seal(header, first_event_id)

    def take(self) -> list[Event]:
        """Return all that waits as events, instead of records."""
        return [_event(*said) for said in self._native.take()]

    # --- what it can be asked ---

    @property
    def capacity_blocks(self) -> int:
        """Of the engine's device tier; 0: unknown."""
        return self._native.capacity_blocks

    @capacity_blocks.setter
    def capacity_blocks(self, blocks: int) -> None:
        self._native.capacity_blocks = blocks

    @property
    def unindexable(self) -> Counter[Reason]:
        """Blocks that were refused, by reason; an event that names no blocks counts as one."""
        return Counter({Reason(name): count for name, count in self._native.unindexable().items()})

    @property
    def blind_spots(self) -> Sequence[str]:
        """What the engine's release cannot tell apart, in words for a warning; it grows."""
        return self._native.blind_spots

    @property
    def held_blocks(self) -> int:
        """Engine hashes held, published or not, over all tiers."""
        return self._native.held_blocks

    @property
    def suspect_blocks(self) -> int:
        """Engine hashes whose removal may have been lost."""
        return self._native.suspect_blocks

    @property
    def suspects_removed(self) -> int:
        """Suspects for which the engine had no room."""
        return self._native.suspects_removed

    @property
    def memory_bytes(self) -> int:
        """Of what is held, links included."""
        return self._native.memory_bytes

    @property
    def unreachable_blocks(self) -> int:
        """Sequence hashes held below a gap, and so not published. Walks the whole mirror."""
        return self._native.unreachable_blocks()

    def digests(self) -> tuple[TierDigest, ...]:
        """Number and XOR of the published sequence hashes: of the device, and of tiers that have any.

        An emptied mirror so says that it is empty; saying nothing would claim nothing to compare.
        """
        return tuple(
            TierDigest(tier, blocks, digest)
            for tier, (blocks, digest) in zip(TIERS, self._native.digests(), strict=True)
            if blocks or tier is SaidTier.DEVICE
        )

    def published_blocks(self, tier: Tier) -> int:
        """How many sequence hashes are published on a tier."""
        return self._native.digests()[tier][0]

    def snapshot(self) -> Mapping[SaidTier, Hashes]:
        """Copy the published set, by tier."""
        return {
            TIERS[tier]: self._native.snapshot(tier) for tier in Tier if self.published_blocks(tier)
        }


def _event(kind: str, parent: int | None, tier: int | None, hashes: Hashes) -> Event:
    """Return an operation of the native mirror as an event of the model."""
    if tier is None:
        return Clear(None)
    match kind:
        case "store":
            return Store(parent, hashes, TIERS[tier])
        case "remove":
            return Remove(hashes, TIERS[tier])
        case _:
            return Clear(TIERS[tier])
