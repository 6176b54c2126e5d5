"""Pick plugins that draw: weighted by cost, or the better of two."""

from typing import Any, Final

import numpy as np
from pydantic import Field

from kvatlas_chassis import Settings
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Kind, Mask, NoParams, PluginSpec, Services, Unit, Values
from kvatlas_frontend.routing.plugins.pickers import LowestCostPlugin


class WeightedRandomParams(Settings):
    """`temperature`: 0 picks the best; the higher, the more even are the chances."""

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)


class WeightedRandomPlugin:
    """Draws a worker; the chance is a softmax of the costs over the temperature.

    Costs are first divided by their range, the highest minus the lowest, so a temperature means the
    same in every unit: at 1 the best is e times as likely as the worst. Equal costs have equal
    chances. This is the softmax of Dynamo's router (`lib/kv-router/src/scheduling/selector.rs`).
    """

    reason = Reason.RANDOM

    def __init__(self, services: Services, params: WeightedRandomParams) -> None:
        self._rng = services.rng
        self._temperature = params.temperature
        self._best = LowestCostPlugin(services, NoParams())

    def pick(self, context: RoutingContext, candidates: Mask, costs: Values) -> int:
        """See `Picker`."""
        if not self._temperature:
            return self._best.pick(context, candidates, costs)
        rows = candidates.nonzero()[0]
        known = costs[rows]
        lowest = known.min()
        spread = (known.max() - lowest) * self._temperature
        if not spread:
            return int(rows[self._rng.randrange(len(rows))])
        sums = np.exp((lowest - known) / spread).cumsum()
        place = sums.searchsorted(self._rng.random() * sums[-1], side="right")
        return int(rows[min(int(place), len(rows) - 1)])


class PowerOfTwoPlugin:
    """Draws two workers and picks the cheaper; a tie goes to the one with fewer requests.

    Routers with stale figures do not all rush to one worker. M. Mitzenmacher, "The Power of Two
    Choices in Randomized Load Balancing", 2001.
    """

    reason = Reason.RANDOM

    def __init__(self, services: Services, _: NoParams) -> None:
        self._columns = services.fleet.columns
        self._rng = services.rng

    def pick(self, _: RoutingContext, candidates: Mask, costs: Values) -> int:
        """See `Picker`."""
        rows = candidates.nonzero()[0]
        if len(rows) == 1:
            return int(rows[0])
        first, second = (int(rows[place]) for place in self._rng.sample(range(len(rows)), 2))
        columns = self._columns

        def worth(row: int) -> tuple[float, int]:
            requests = columns.requests[row] + columns.requests_elsewhere[row]
            return float(costs[row]), int(requests)

        return second if worth(second) < worth(first) else first


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec(
        "weighted-random",
        Kind.PICK,
        WeightedRandomParams,
        WeightedRandomPlugin,
        takes=(Unit.TOKENS, Unit.SHARE),
    ),
    PluginSpec(
        "power-of-two", Kind.PICK, NoParams, PowerOfTwoPlugin, takes=(Unit.TOKENS, Unit.SHARE)
    ),
)
