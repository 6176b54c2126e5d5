"""The slot tracker: what this frontend has in flight on each worker.

A burst of requests arrives faster than any engine can report its load, so each choice is counted
here at once, before anything is awaited: the next choice already sees it, and the burst spreads.
"""

from kvatlas_frontend.fleet.columns import Columns


class Ticket:
    """One request's place on one worker. `first_byte` and `end` may be called more than once."""

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
        """The prompt has been computed: its prefill is load no more."""
        if self._prefill_tokens:
            self._columns.prefill_tokens[self.row] -= self._prefill_tokens
            self._prefill_tokens = 0

    def end(self) -> bool:
        """The request has left the worker. True the first time."""
        if self._ended:
            return False
        self._ended = True
        self.first_byte()
        self._columns.requests[self.row] -= 1
        self._columns.active_tokens[self.row] -= self._active_tokens
        return True


class SlotTracker:
    """Hands out tickets; every ticket must be ended."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def begin(self, row: int, *, prompt_tokens: int, cached_tokens: int) -> Ticket:
        """Count a request on `row`.

        Args:
            row: of the chosen worker.
            prompt_tokens: length of the prompt; 0 where the policy does not look at it.
            cached_tokens: of these, what the worker holds already.
        """
        return Ticket(
            self._columns,
            row,
            prefill_tokens=max(0, prompt_tokens - cached_tokens),
            active_tokens=prompt_tokens,
        )

    def reported(self, row: int, requests: int | None) -> None:
        """An engine says how many requests it has; what is not ours is other frontends'.

        Our own count is taken at the same moment, so that the report, which is older than the
        next choice, is never counted on top of it. None: nobody knows any more; what was true
        once is not held against a worker.
        """
        others = 0 if requests is None else requests - int(self._columns.requests[row])
        self._columns.requests_elsewhere[row] = max(0, others)
