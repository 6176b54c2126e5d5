"""The facts that routing needs about workers, as numpy columns with one row per worker.

Filters, scorers and pickers work on whole columns, so a choice among a thousand workers costs a
dozen array operations instead of a thousand Python calls.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_FIRST_ROWS: Final = 16


class Columns:
    """Parallel arrays, one entry per row. Written by `Fleet` and `LoadTracker`, read by plugins.

    Runs on one event loop. Growing replaces the arrays, so do not keep one across an `await`.
    """

    def __init__(self) -> None:
        self.rows = _FIRST_ROWS
        # Whether the row holds a worker with a known engine address.
        self.present = np.zeros(self.rows, dtype=np.bool_)
        # Whether the worker's matches count: its state is LIVE.
        self.live = np.zeros(self.rows, dtype=np.bool_)
        # Monotonic times until which the engine's circuit breaker is open: it could not be reached,
        # or it failed requests.
        self.unreachable_until_s = np.zeros(self.rows)
        self.failing_until_s = np.zeros(self.rows)
        # Failures of the engine since its last good answer.
        self.failures = np.zeros(self.rows, dtype=np.int64)
        # Requests in flight from this frontend (all of its processes), and from others.
        self.requests = np.zeros(self.rows, dtype=np.int64)
        self.requests_elsewhere = np.zeros(self.rows, dtype=np.int64)
        # Prompt tokens in flight: not yet computed, and all.
        self.prefill_tokens = np.zeros(self.rows, dtype=np.int64)
        self.active_tokens = np.zeros(self.rows, dtype=np.int64)
        # Hash of the worker's name, for rendezvous hashing.
        self.rendezvous_keys = np.zeros(self.rows, dtype=np.uint64)

    def grow(self) -> None:
        """Double the number of rows; keep their contents."""
        more = self.rows
        for name in _COLUMNS:
            column: NDArray[np.generic] = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, dtype=column.dtype)]))
        self.rows += more

    def clear(self, row: int) -> None:
        """Reset `row` to zeros."""
        for name in _COLUMNS:
            getattr(self, name)[row] = 0


_COLUMNS: Final = (
    "present",
    "live",
    "unreachable_until_s",
    "failing_until_s",
    "failures",
    "requests",
    "requests_elsewhere",
    "prefill_tokens",
    "active_tokens",
    "rendezvous_keys",
)
