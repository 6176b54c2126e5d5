"""The facts that routing needs about workers, as numpy columns with one row per worker.

Filters, scorers and pickers work on whole columns, so a choice among a thousand workers costs a
dozen array operations instead of a thousand Python calls.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvatlas_frontend.fleet.labels import LabelColumn, LabelColumns

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
        # The engine's own figures, and the monotonic time at which it told them; -inf: never, and
        # the figures are 0.
        self.requests_running = np.zeros(self.rows, dtype=np.int64)
        self.requests_waiting = np.zeros(self.rows, dtype=np.int64)
        self.kv_usage = np.zeros(self.rows)
        self.load_told_s = np.full(self.rows, -np.inf)
        # Size of the engine's cache on its device; 0: unknown.
        self.capacity_blocks = np.zeros(self.rows, dtype=np.int64)
        # The worker's role, as in "prefill", and its labels.
        self.role = LabelColumn(self.rows)
        self.labels = LabelColumns(self.rows)
        # Hash of the worker's name, for rendezvous hashing.
        self.rendezvous_keys = np.zeros(self.rows, dtype=np.uint64)

    def grow(self) -> None:
        """Double the number of rows; keep their contents."""
        more = self.rows
        for name in _COLUMNS:
            column: NDArray[np.generic] = getattr(self, name)
            empty = np.full(more, _EMPTY.get(name, 0), dtype=column.dtype)
            setattr(self, name, np.concatenate([column, empty]))
        self.role.grow(more)
        self.labels.grow(more)
        self.rows += more

    def clear(self, row: int) -> None:
        """Reset `row` to the values of an empty one."""
        for name in _COLUMNS:
            getattr(self, name)[row] = _EMPTY.get(name, 0)
        self.role.put(row, "")
        self.labels.clear(row)


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
    "requests_running",
    "requests_waiting",
    "kv_usage",
    "load_told_s",
    "capacity_blocks",
    "rendezvous_keys",
)

# Values of an empty row where they are not 0.
_EMPTY: Final = {"load_told_s": -np.inf}
