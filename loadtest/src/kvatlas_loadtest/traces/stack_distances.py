"""LRU hits for every capacity in one pass, by stack distances (Mattson et al., 1970).

A block's stack distance is the number of different blocks that were used after its last use. An LRU
cache hits exactly the blocks whose distance is below its capacity. As in an engine, a request is
looked up as a whole before it is stored, and its last blocks are evicted before its first ones.
Then a cache never holds a block without those before it, so single hits and leading hits agree.

With `prev[i]` the previous use of reference i, its distance follows from the number of earlier
references whose own previous use is before `prev[i]`. These counts come from a merge sort, level by
level, O(n log n) in numpy. A long trace is folded in parts: all that earlier parts leave behind is
the order of the last uses, so memory follows the distinct blocks, not the trace.
"""

import numpy as np

from kvatlas_loadtest.traces.requests import Ints, runs


class StackDistances:
    """Computes stack distances of parts of one trace, in their order."""

    def __init__(self) -> None:
        self._rank: Ints = np.zeros(0, dtype=np.int64)  # of each block by its last use, 0: oldest

    def fold(self, blocks: Ints, offsets: Ints, *, known: int) -> Ints:
        """Return the distance of every reference, -1 for a first one.

        Args:
            blocks: dense numbers of the blocks, each request from its root; the ids form a tree.
            offsets: where each request begins, and the end.
            known: number of blocks numbered so far, these included.
        """
        older, count = len(self._rank), len(blocks)
        rank = np.concatenate((self._rank, np.full(known - older, -1)))
        lengths = np.diff(offsets)
        # The last block of a request is used first, so that it is evicted first.
        backwards = np.repeat(offsets[1:] + offsets[:-1] - 1, lengths) - np.arange(count)
        used = blocks[backwards]
        order = np.argsort(used, kind="stable")
        again = np.flatnonzero(used[order][1:] == used[order][:-1]) + 1
        previous = rank[used]
        previous[order[again]] = order[again - 1] + older
        # Uses between a request's first and this one are not counted: the look-up comes before all.
        within = runs(np.zeros(len(lengths), dtype=np.int64), lengths)
        after = older + smaller_before(previous) - within - previous - 1
        distances = np.empty(count, dtype=np.int64)
        distances[backwards] = np.where(previous >= 0, after, -1)
        rank[used] = older + np.arange(count)  # the last of equal indices wins
        self._rank = np.empty(known, dtype=np.int64)
        self._rank[np.argsort(rank, kind="stable")] = np.arange(known)
        return distances


def smaller_before(values: Ints) -> Ints:
    """Return for each value how many of those before it are smaller.

    It is exact for every value that occurs once, which previous uses do; -1 may occur often, and its
    own counts mean nothing. Sorted by value, the positions are split by their highest bit, then by
    the next one. A position in the right half counts the left ones that stand before it.
    """
    size = 1 << max(0, len(values) - 1).bit_length()
    order = np.full(size, -1, dtype=np.int64)
    order[: len(values)] = np.argsort(values, kind="stable")
    order[len(values) :] = np.arange(len(values), size)
    counts = np.zeros(size, dtype=np.int64)
    half = size >> 1
    while half:
        right = (order & half) != 0
        # Each group of 2 * half positions holds exactly `half` left ones.
        left_before = np.cumsum(~right)[right] - np.repeat(
            np.arange(size // (2 * half)) * half, half
        )
        counts[order[right]] += left_before
        halves = (order[~right].reshape(-1, half), order[right].reshape(-1, half))
        order = np.concatenate(halves, axis=1).ravel()
        half >>= 1
    return counts[: len(values)]
