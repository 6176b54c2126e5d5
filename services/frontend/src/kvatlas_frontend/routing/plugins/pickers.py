"""Pick plugins: choose one of the remaining workers."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Kind, Mask, NoParams, PluginSpec, Services, Unit, Values
from kvatlas_frontend.routing.slots import CHUNK_HASHES

_MIX = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: 2^64 divided by the golden ratio


class LowestCostPlugin:
    """Picks the cheapest worker. Ties go to the one with fewest requests, then by rendezvous hash.

    The rendezvous hash mixes each worker's name with the hash of the prompt's last block, or with
    a counter if the policy hashes nothing. So frontends that do not know of one another send equal
    prompts to the same worker, and different prompts to different workers. The counters of a
    frontend's processes are far apart.
    """

    reason: Reason = Reason.LEAST_LOADED

    def __init__(self, services: Services, _: NoParams) -> None:
        self._columns = services.fleet.columns
        self._choices = services.process << 32

    def pick(
        self,
        context: RoutingContext,
        candidates: Mask,
        costs: Values,
    ) -> int:
        """See `Picker`."""
        rows = candidates.nonzero()[0]
        rows = _lowest(rows, costs[rows])
        if len(rows) > 1:
            columns = self._columns
            rows = _lowest(rows, columns.requests[rows] + columns.requests_elsewhere[rows])
        if len(rows) > 1:
            return int(rows[self._highest_rendezvous(context, rows)])
        return int(rows[0])

    def _highest_rendezvous(self, context: RoutingContext, rows: NDArray[np.intp]) -> int:
        hashes = context.get(CHUNK_HASHES)
        if hashes is not None and len(hashes):
            key = hashes[-1]
        else:
            self._choices += 1
            key = np.uint64(self._choices)
        mixed = (self._columns.rendezvous_keys[rows] ^ key) * _MIX  # wraps around, as intended
        return int((mixed ^ (mixed >> np.uint64(32))).argmax())


class HighestScorePlugin(LowestCostPlugin):
    """Picks the worker with the highest sum of shares; ties as with `lowest-cost`."""

    reason = Reason.HIGHEST_SCORE


class RoundRobinPlugin:
    """Takes the candidates in turn, ordered by (worker_id, dp_rank); ignores costs.

    Each process of a frontend begins at another worker.
    """

    reason = Reason.ROUND_ROBIN

    def __init__(self, services: Services, _: NoParams) -> None:
        self._fleet = services.fleet
        self._version = -1
        self._order: list[int] = []
        self._last: int | None = None
        self._start = services.process / services.processes

    def pick(
        self,
        _: RoutingContext,
        candidates: Mask,
        __: Values,
    ) -> int:
        """See `Picker`."""
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            self._order = [row for _, row in sorted(self._fleet.rows.items())]
        count = len(self._order)
        if self._last is None:
            self._last = int(self._start * count) - 1
        for step in range(1, count + 1):
            place = (self._last + step) % count
            if candidates[self._order[place]]:
                self._last = place
                return self._order[place]
        raise LookupError("no candidate is in the table")


def _lowest(rows: NDArray[np.intp], values: NDArray[Any]) -> NDArray[np.intp]:
    return rows[values == values.min()]


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec("lowest-cost", Kind.PICK, NoParams, LowestCostPlugin, takes=(Unit.TOKENS,)),
    PluginSpec("highest-score", Kind.PICK, NoParams, HighestScorePlugin, takes=(Unit.SHARE,)),
    PluginSpec("round-robin", Kind.PICK, NoParams, RoundRobinPlugin),
)
