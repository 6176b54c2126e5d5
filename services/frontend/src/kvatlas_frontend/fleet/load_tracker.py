"""Counts what this frontend has in flight on each worker.

A burst of requests arrives faster than any engine can report its load. So each choice is counted
here before anything is awaited: the next choice already sees it, and the burst spreads.
"""

from kvatlas_client import WorkerKey
from kvatlas_frontend.fleet.columns import Columns


class Ticket:
    """One request in flight on one worker. `first_byte` and `end` may be called more than once."""

    __slots__ = ("_active_tokens", "_ended", "_prefill_tokens", "_tracker", "row")

    def __init__(
        self, tracker: "LoadTracker", row: int, *, prefill_tokens: int, active_tokens: int
    ) -> None:
        self.row = row
        self._tracker = tracker
        self._prefill_tokens = prefill_tokens
        self._active_tokens = active_tokens
        self._ended = False
        tracker.add(row, 1, prefill_tokens, active_tokens)

    def first_byte(self) -> None:
        """Stop counting the prompt's prefill: it has been computed."""
        if self._prefill_tokens:
            self._tracker.add(self.row, 0, -self._prefill_tokens, 0)
            self._prefill_tokens = 0

    def end(self) -> bool:
        """Stop counting the request. True the first time."""
        if self._ended:
            return False
        self._ended = True
        self._tracker.add(self.row, -1, -self._prefill_tokens, -self._active_tokens)
        self._prefill_tokens = 0
        return True


class LoadTracker:
    """Hands out tickets; the holder must end each one.

    This one counts in the columns alone. A frontend of several processes has a tracker that shares
    the counts with them, `kvatlas_frontend.processes.shared_load`.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def begin(self, row: int, *, prompt_tokens: int, cached_tokens: int) -> Ticket:
        """Count a request on `row`.

        Args:
            row: the chosen worker's row.
            prompt_tokens: length of the prompt; 0 if the policy does not tokenize it.
            cached_tokens: how many of these the worker already holds.
        """
        return Ticket(
            self,
            row,
            prefill_tokens=max(0, prompt_tokens - cached_tokens),
            active_tokens=prompt_tokens,
        )

    def reported(self, row: int, requests: int | None) -> None:
        """Take in an engine's own number of requests; those that are not ours are other frontends'.

        Our count is subtracted now, so that a later choice is not counted twice. None: the number
        is unknown, and the last one no longer counts.
        """
        self.refresh()
        others = 0 if requests is None else requests - int(self._columns.requests[row])
        self._columns.requests_elsewhere[row] = max(0, others)

    def add(self, row: int, requests: int, prefill_tokens: int, active_tokens: int) -> None:
        """Change the counts of a row."""
        columns = self._columns
        columns.requests[row] += requests
        columns.prefill_tokens[row] += prefill_tokens
        columns.active_tokens[row] += active_tokens

    def requests_here(self, row: int) -> int:
        """Number of requests of this process that are in flight on a row."""
        return int(self._columns.requests[row])

    def refresh(self) -> None:
        """Bring the columns up to date before they are read for a choice."""

    def took_row(self, row: int, key: WorkerKey) -> None:
        """Learn that a row now holds this worker."""

    def left_row(self, row: int) -> None:
        """Learn that a row is empty, with nothing in flight on it."""
