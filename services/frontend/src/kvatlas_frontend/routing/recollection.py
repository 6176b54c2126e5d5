"""Bounded memories of past choices, for plugins that send related requests to one worker.

Each process of a frontend has its own: they are hints, and nothing is lost with them.
"""

from collections import OrderedDict
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from kvatlas_client import WorkerKey
from kvatlas_frontend.fleet.columns import Columns


class LastWorkers:
    """The worker that last served each key; forgotten after a time, the oldest first if full."""

    def __init__(self, *, keys_max: int, ttl_s: float) -> None:
        self._keys_max = keys_max
        self._ttl_s = ttl_s
        self._workers: OrderedDict[Hashable, tuple[WorkerKey, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, key: Hashable, now_s: float) -> WorkerKey | None:
        """The key's worker; None: there is none, or it was too long ago."""
        found = self._workers.get(key)
        if found is None:
            return None
        worker, until_s = found
        if now_s >= until_s:
            del self._workers[key]
            return None
        return worker

    def put(self, key: Hashable, worker: WorkerKey, now_s: float) -> None:
        """Remember the key's worker; its time begins again."""
        workers = self._workers
        workers[key] = (worker, now_s + self._ttl_s)
        workers.move_to_end(key)
        # A few of the oldest a time: the cost of forgetting is spread, and the table cannot stay full
        # of entries whose time is over.
        for _ in range(2):
            oldest = next(iter(workers))
            if len(workers) <= self._keys_max and workers[oldest][1] > now_s:
                break
            del workers[oldest]


class RowTimes:
    """A time for each row, -inf at first; a row that gets another worker begins anew."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._workers = columns.rendezvous_keys.copy()
        self._times_s: NDArray[np.float64] = np.full(columns.rows, -np.inf)

    def times_s(self) -> NDArray[np.float64]:
        """The times by row."""
        keys = self._columns.rendezvous_keys
        if len(keys) != len(self._times_s):
            more = len(keys) - len(self._times_s)
            self._times_s = np.concatenate([self._times_s, np.full(more, -np.inf)])
            self._workers = np.concatenate([self._workers, np.zeros(more, dtype=np.uint64)])
        changed = keys != self._workers
        if changed.any():
            self._times_s[changed] = -np.inf
            self._workers = keys.copy()
        return self._times_s

    def put(self, row: int, time_s: float) -> None:
        """Set a row's time."""
        self.times_s()[row] = time_s
