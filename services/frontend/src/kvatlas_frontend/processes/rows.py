"""Gives each worker a row of the shared memory, the same one for all processes.

Processes learn of workers from the indexers on their own, at slightly different times. So a process
claims a worker's row when it learns of it, and releases it when the worker is gone and nothing is in
flight on it. A row is given to another worker only once no process holds it.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from kvatlas_client import WorkerKey

Claim = tuple[int, int]
"""A process, and the number that it gave to its claim."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a claim."""

    claim: Claim
    row: int


class RowTable:
    """The claims of all processes.

    A claim that finds no free row waits for one; `waiting` is the number of workers that have none.
    """

    def __init__(self, rows: int) -> None:
        self._free = list(range(rows))
        self._rows: dict[WorkerKey, int] = {}
        self._claims: dict[Claim, WorkerKey] = {}
        self._holders: dict[WorkerKey, set[Claim]] = {}  # first come, first served

    @property
    def waiting(self) -> int:
        """Number of workers without a row."""
        return len(self._holders) - len(self._rows)

    def claim(self, claim: Claim, key: WorkerKey) -> list[Grant]:
        """Claim the row of a worker; returns what can be granted now."""
        self._claims[claim] = key
        self._holders.setdefault(key, set()).add(claim)
        if key not in self._rows:
            if not self._free:
                return []
            self._rows[key] = heapq.heappop(self._free)
        return [Grant(claim, self._rows[key])]

    def release(self, claim: Claim) -> list[Grant]:
        """Give a claim up; returns what others get by it."""
        return self._release((claim,))

    def ended(self, process: int) -> list[Grant]:
        """Give up all claims of a process that has ended."""
        return self._release([claim for claim in self._claims if claim[0] == process])

    def _release(self, claims: Iterable[Claim]) -> list[Grant]:
        for claim in claims:
            key = self._claims.pop(claim)
            holders = self._holders[key]
            holders.remove(claim)
            if not holders:
                del self._holders[key]
                row = self._rows.pop(key, None)
                if row is not None:
                    heapq.heappush(self._free, row)
        grants: list[Grant] = []
        if self._free and self.waiting:
            for key, holders in self._holders.items():
                if key not in self._rows and self._free:
                    row = self._rows[key] = heapq.heappop(self._free)
                    grants += (Grant(claim, row) for claim in sorted(holders))
        return grants
