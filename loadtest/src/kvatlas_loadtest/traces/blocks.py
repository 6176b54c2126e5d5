"""The tree of a trace's blocks: dense numbers for ids, and the check that they form a tree.

An id stands for a block and all blocks before it, so it always follows the same id. A trace that
breaks this has no prefixes, and no figure about them would mean anything.
"""

import numpy as np

from kvatlas_loadtest.trace import TraceError
from kvatlas_loadtest.traces.requests import Ints, Requests, runs

ROOT = -1
"""Parent of a request's first block."""


class BlockTree:
    """Every block seen so far; grows with each part of the trace.

    Attributes:
        parent: number of the block before it, `ROOT` for a first one; parents come before children.
        visits: number of requests that contain it.
        depth: number of blocks before it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ids: Ints = np.zeros(0, dtype=np.int64)  # sorted
        self._numbers: Ints = np.zeros(0, dtype=np.int64)  # of each of these
        self.parent: Ints = np.zeros(0, dtype=np.int64)
        self.visits: Ints = np.zeros(0, dtype=np.int64)
        self.depth: Ints = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.parent)

    def add(self, part: Requests) -> Ints:
        """Number the part's blocks; new ones get the next numbers, by first appearance.

        Raises:
            TraceError: an id follows another id than before.
        """
        numbers = self._number(part.ids)
        depth = runs(np.zeros(len(part), dtype=np.int64), part.blocks)
        parents = np.where(depth == 0, ROOT, np.concatenate(([ROOT], numbers[:-1])))[: len(numbers)]
        old = len(self)
        known = int(numbers.max(initial=old - 1)) + 1
        is_new = numbers >= old
        # The first use of a new block decides; assigning backwards lets it win.
        self.parent = np.concatenate((self.parent, np.full(known - old, ROOT)))
        self.depth = np.concatenate((self.depth, np.zeros(known - old, dtype=np.int64)))
        self.parent[numbers[is_new][::-1]] = parents[is_new][::-1]
        self.depth[numbers[is_new][::-1]] = depth[is_new][::-1]
        wrong = self.parent[numbers] != parents
        if wrong.any():
            raise self._not_a_tree(part, int(np.argmax(wrong)), int(numbers[np.argmax(wrong)]))
        self.visits = np.concatenate((self.visits, np.zeros(known - old, dtype=np.int64)))
        self.visits += np.bincount(numbers, minlength=known)
        return numbers

    def _number(self, ids: Ints) -> Ints:
        unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        places = np.searchsorted(self._ids, unique)
        found = np.zeros(len(unique), dtype=np.bool_)
        inside = places < len(self._ids)
        found[inside] = self._ids[places[inside]] == unique[inside]
        numbers = np.empty(len(unique), dtype=np.int64)
        numbers[found] = self._numbers[places[found]]
        new = np.flatnonzero(~found)
        numbers[new[np.argsort(first[new])]] = len(self) + np.arange(len(new))
        self._ids = np.insert(self._ids, places[new], unique[new])
        self._numbers = np.insert(self._numbers, places[new], numbers[new])
        return numbers[inverse]

    def _not_a_tree(self, part: Requests, at: int, number: int) -> TraceError:
        row = int(np.searchsorted(part.offsets, at, side="right")) - 1
        place = at - int(part.offsets[row])
        expected = int(self.parent[number])
        before = (
            "came first in its prompt"
            if expected == ROOT
            else f"followed {self._ids[np.argmax(self._numbers == expected)]}"
        )
        now = f"follows {part.ids[at - 1]}" if place else "comes first"
        return TraceError(
            f"{self._name}, line {part.lines[row]}: hash_ids[{place}]: id {part.ids[at]} {now}, but "
            f"before it {before}; an id stands for its whole prefix, so its parent is always the same"
        )
