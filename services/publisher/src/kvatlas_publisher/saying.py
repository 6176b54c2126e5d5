"""Collects what the reference mirror has to say into as few events as say the same.

A chain of blocks stored one by one is one `Store`, removals on one tier are one `Remove`. The order
never changes, so every border between two events is a state that the mirror was in.
"""

import numpy as np

from kvatlas_engines import Tier as EngineTier
from kvatlas_events import BATCH_HASHES_MAX, Clear, Event, Remove, Store, Tier

TIERS: tuple[Tier, ...] = (Tier.DEVICE, Tier.HOST, Tier.DISK, Tier.REMOTE)
"""By the number of the engines' tier."""


class Saying:
    """Events under way; `end` gives them out."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._tier = 0
        self._parent: int | None = None
        self._stored: list[int] = []
        self._removed: list[int] = []

    def store(self, parent: int | None, sequence_hash: int, tier: int) -> None:
        """Say that a block is on a tier."""
        stored = self._stored
        continues = bool(stored) and stored[-1] == parent and self._tier == tier
        if not continues or len(stored) == BATCH_HASHES_MAX:
            self._close()
            self._tier, self._parent = tier, parent
        self._stored.append(sequence_hash)

    def remove(self, sequence_hash: int, tier: int) -> None:
        """Say that a block has left a tier."""
        removed = self._removed
        if not removed or self._tier != tier or len(removed) == BATCH_HASHES_MAX:
            self._close()
            self._tier = tier
        self._removed.append(sequence_hash)

    def clear(self, tier: EngineTier | None) -> None:
        """Say that a tier, or everything, is empty."""
        self._close()
        self._events.append(Clear(None if tier is None else TIERS[tier]))

    def end(self) -> list[Event]:
        """Return all that was said, in order."""
        self._close()
        return self._events

    def _close(self) -> None:
        if self._stored:
            hashes = np.array(self._stored, dtype=np.uint64)
            self._events.append(Store(self._parent, hashes, TIERS[self._tier]))
            self._stored = []
        if self._removed:
            hashes = np.array(self._removed, dtype=np.uint64)
            self._events.append(Remove(hashes, TIERS[self._tier]))
            self._removed = []
