"""Counts what this frontend has in flight on each worker.

A burst of requests arrives faster than any engine can report its load. So each choice is counted
here before anything is awaited: the next choice already sees it, and the burst spreads.
"""

from kvatlas_frontend.fleet.columns import Columns


class Ticket:
    """One request in flight on one worker. `first_byte` and `end` may be called more than once."""

    __slots__ = ("_active_tokens", "_columns", "_ended", "_prefill_tokens", "row")

    def __init__(
        self, columns: Columns, row: int, *, prefill_tokens: int, active_tokens: int
    ) -> None:
        self.row = row
        self._columns = columns
        self._prefill_tokens = prefill_tokens
        self._active_tokens = active_tokens
        self._ended = False
        columns.requests[row] += 1
        columns.prefill_tokens[row] += prefill_tokens
        columns.active_tokens[row] += active_tokens

    def first_byte(self) -> None:
        """Stop counting the prompt's prefill: it has been computed."""
        if self._prefill_tokens:
            self._columns.prefill_tokens[self.row] -= self._prefill_tokens
            self._prefill_tokens = 0

    def end(self) -> bool:
        """Stop counting the request. True the first time."""
        if self._ended:
            return False
        self._ended = True
        self.first_byte()
        self._columns.requests[self.row] -= 1
        self._columns.active_tokens[self.row] -= self._active_tokens
        return True


class LoadTracker:
    """Hands out tickets; the holder must end each one."""

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
            self._columns,
            row,
            prefill_tokens=max(0, prompt_tokens - cached_tokens),
            active_tokens=prompt_tokens,
        )

    def reported(self, row: int, requests: int | None) -> None:
        """Take in an engine's own number of requests; those that are not ours are other frontends'.

        Our count is subtracted now, so that a later choice is not counted twice. None: the number
        is unknown, and the last one no longer counts.
        """
        others = 0 if requests is None else requests - int(self._columns.requests[row])
        self._columns.requests_elsewhere[row] = max(0, others)
