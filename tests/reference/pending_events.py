"""The specification of pending events: as few events as possible with the same effect.

A chain of blocks stored one by one is one `Store`, removals on one tier are one `Remove`. The order
never changes, so every border between two events is a state that the mirror was in.
"""

import numpy as np

from kvatlas_events import BATCH_HASHES_MAX, Clear, Event, Remove, Store, Tier


class PendingEvents:
    """Collects the changes of one message; `end` returns the events."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._tier = Tier.DEVICE
        self._parent: int | None = None
        self._stored: list[int] = []
        self._removed: list[int] = []

    def store(self, parent: int | None, sequence_hash: int, tier: Tier) -> None:
        stored = self._stored
        continues = bool(stored) and stored[-1] == parent and self._tier == tier
        if not continues or len(stored) == BATCH_HASHES_MAX:
            self._close()
            self._tier, self._parent = tier, parent
        self._stored.append(sequence_hash)

    def remove(self, sequence_hash: int, tier: Tier) -> None:
        removed = self._removed
        if not removed or self._tier != tier or len(removed) == BATCH_HASHES_MAX:
            self._close()
            self._tier = tier
        self._removed.append(sequence_hash)

    def clear(self, tier: Tier | None) -> None:
        self._close()
        self._events.append(Clear(tier))

    def end(self) -> list[Event]:
        self._close()
        return self._events

    def _close(self) -> None:
        if self._stored:
            hashes = np.array(self._stored, dtype=np.uint64)
            self._events.append(Store(self._parent, hashes, self._tier))
            self._stored = []
        if self._removed:
            hashes = np.array(self._removed, dtype=np.uint64)
            self._events.append(Remove(hashes, self._tier))
            self._removed = []
