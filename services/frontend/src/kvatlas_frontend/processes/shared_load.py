"""A load tracker whose counts are those of all processes of the frontend.

Each process counts its own requests, and publishes the counts in its lines of the shared memory.
Before a decision the lines of all processes are added up, so a burst spreads even if each of its
requests arrives at another process. The two steps are not one: processes that decide in the same
microseconds may choose the same worker, and then see it.
"""

from collections.abc import Callable
from itertools import count

import numpy as np
from numpy.typing import NDArray

from kvatlas_client import WorkerKey
from kvatlas_frontend.fleet.columns import Columns
from kvatlas_frontend.fleet.load_tracker import LoadTracker
from kvatlas_frontend.processes.control import ClaimRow, ReleaseRow
from kvatlas_frontend.processes.memory import LOADS, UNSHARED, SharedMemory

_REQUESTS, _PREFILL_TOKENS, _ACTIVE_TOKENS = range(LOADS)


class SharedLoadTracker(LoadTracker):
    """Shares the columns `requests`, `prefill_tokens` and `active_tokens`.

    A worker's shared row is the same in all processes, and is not its row in the columns. The
    supervisor gives it on request. Until then, and for workers beyond `memory.ROWS`, only this
    process's requests are counted.
    """

    def __init__(
        self,
        columns: Columns,
        *,
        memory: SharedMemory,
        process: int,
        ask: Callable[[ClaimRow | ReleaseRow], None],
    ) -> None:
        super().__init__(columns)
        self._all = memory.load
        self._line = memory.load[process]
        self._ask = ask
        # By row of the columns.
        self._here = np.zeros((LOADS, columns.rows), dtype=np.int64)
        self._shared_rows = np.full(columns.rows, UNSHARED, dtype=np.intp)
        self._unshared: set[int] = set()
        self._claims: dict[int, int] = {}  # number of the claim, by row
        self._claimed: dict[int, int] = {}  # the reverse
        self._numbers = count()

    def add(self, row: int, requests: int, prefill_tokens: int, active_tokens: int) -> None:
        """See `LoadTracker`."""
        here = self._here
        here[_REQUESTS, row] += requests
        here[_PREFILL_TOKENS, row] += prefill_tokens
        here[_ACTIVE_TOKENS, row] += active_tokens
        shared_row = self._shared_rows[row]
        if shared_row != UNSHARED:
            # Each word is stored whole. It is added to, because a worker that left and came back has
            # two rows here while requests of before are in flight.
            line = self._line
            line[_REQUESTS, shared_row] += requests
            line[_PREFILL_TOKENS, shared_row] += prefill_tokens
            line[_ACTIVE_TOKENS, shared_row] += active_tokens

    def requests_here(self, row: int) -> int:
        """See `LoadTracker`."""
        return int(self._here[_REQUESTS, row])

    def refresh(self) -> None:
        """See `LoadTracker`."""
        totals: NDArray[np.int64] = self._all.take(self._shared_rows, axis=2).sum(axis=0)
        for row in self._unshared:
            totals[:, row] = self._here[:, row]
        columns = self._columns
        columns.requests, columns.prefill_tokens, columns.active_tokens = totals

    def took_row(self, row: int, key: WorkerKey) -> None:
        """See `LoadTracker`."""
        more = self._columns.rows - len(self._shared_rows)
        if more:
            self._here = np.pad(self._here, ((0, 0), (0, more)))
            self._shared_rows = np.pad(self._shared_rows, (0, more), constant_values=UNSHARED)
        number = next(self._numbers)
        self._claims[row] = number
        self._claimed[number] = row
        self._unshared.add(row)
        self._ask(ClaimRow(number, key.worker_id, key.dp_rank))

    def left_row(self, row: int) -> None:
        """See `LoadTracker`."""
        self._shared_rows[row] = UNSHARED
        self._unshared.discard(row)
        number = self._claims.pop(row)
        del self._claimed[number]
        self._ask(ReleaseRow(number))

    def granted(self, number: int, shared_row: int) -> None:
        """Take the shared row that was claimed; nothing happens if the claim was released since."""
        row = self._claimed.get(number)
        if row is None:
            return
        self._shared_rows[row] = shared_row
        self._unshared.discard(row)
        self._line[:, shared_row] += self._here[:, row]
