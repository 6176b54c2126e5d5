"""What routing needs of every worker, as columns: one row a worker, numpy all the way.

Filters, scorers and pickers work on whole columns, so a choice among a thousand workers costs a
dozen array operations instead of a thousand Python calls.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_ROWS_AT_FIRST: Final = 16


class Columns:
    """Parallel arrays, one entry per row. Written by `Fleet` and `SlotTracker`, read by plugins.

    Runs on one event loop; the arrays are replaced when they grow, so nobody keeps one over an
    `await`.
    """

    def __init__(self) -> None:
        self.rows = _ROWS_AT_FIRST
        self.present = np.zeros(self.rows, dtype=np.bool_)  # a worker with an engine's address
        self.live = np.zeros(self.rows, dtype=np.bool_)  # its matches count
        self.out_until_s = np.zeros(self.rows)  # not offered requests before (monotonic time)
        self.requests = np.zeros(self.rows, dtype=np.int64)  # in flight from here
        self.requests_elsewhere = np.zeros(self.rows, dtype=np.int64)  # from other frontends
        self.prefill_tokens = np.zeros(self.rows, dtype=np.int64)  # in flight, not yet computed
        self.active_tokens = np.zeros(self.rows, dtype=np.int64)  # prompts in flight
        self.spread_keys = np.zeros(self.rows, dtype=np.uint64)  # a hash of the worker's name

    def grow(self) -> None:
        """Twice as many rows; what is there stays."""
        more = self.rows
        for name in _COLUMNS:
            column: NDArray[np.generic] = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, dtype=column.dtype)]))
        self.rows += more

    def clear(self, row: int) -> None:
        """Make `row` as new."""
        for name in _COLUMNS:
            getattr(self, name)[row] = 0


_COLUMNS: Final = (
    "present",
    "live",
    "out_until_s",
    "requests",
    "requests_elsewhere",
    "prefill_tokens",
    "active_tokens",
    "spread_keys",
)
