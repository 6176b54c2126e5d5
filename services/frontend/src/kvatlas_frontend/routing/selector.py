"""A selector: one pass of filter, score and pick over a prepared context."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.routing.check import CheckedProfile
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import (
    Filter,
    Follower,
    Kind,
    Mask,
    Picker,
    Scorer,
    Services,
    Values,
)
from kvatlas_frontend.routing.slots import REQUEST
from kvatlas_frontend.routing.timers import Laps, PluginTimers, Timer

_SAMPLED: Final = 16  # one in so many choices has its plugins timed: observing costs more than some


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a choice comes about, by row.

    Attributes:
        kept: for each filter, the rows that it did not remove.
        values: for each scorer, its values before weights.
        costs: their weighted sum, lower is better.
    """

    kept: dict[str, Mask]
    values: dict[str, Values]
    costs: Values


class Selector:
    """The choosing plugins of a checked profile, built. `Preparation` fills the context before.

    All requests of one event loop share it; a request's own values are on its context.
    """

    def __init__(
        self,
        profile: CheckedProfile,
        services: Services,
        *,
        timers: Mapping[str, Timer],
        plugin_timers: PluginTimers,
        now_s: Callable[[], float],
    ) -> None:
        def built(kind: Kind) -> list[object]:
            return [step.spec.build(services, step.params) for step in profile.steps[kind]]

        def timed(kind: Kind) -> list[Timer]:
            return [plugin_timers(kind.value, step.spec.name) for step in profile.steps[kind]]

        filters, scorers, pickers = built(Kind.FILTER), built(Kind.SCORE), built(Kind.PICK)
        self.name = profile.name
        self._fleet: Fleet = services.fleet
        self._now_s = now_s
        self._filters = list(
            zip([cast("Filter", each) for each in filters], timed(Kind.FILTER), strict=True)
        )
        self._scorers = list(
            zip(
                [cast("Scorer", each) for each in scorers],
                [step.factor for step in profile.steps[Kind.SCORE]],
                timed(Kind.SCORE),
                strict=True,
            )
        )
        self._picker = cast("Picker", pickers[0])
        self._pick_timer = timed(Kind.PICK)[0]
        self._followers = [
            each for each in (*filters, *scorers, *pickers) if isinstance(each, Follower)
        ]
        self.reason = self._picker.reason
        self._filter_names = [step.spec.name for step in profile.steps[Kind.FILTER]]
        self._scorer_names = [step.spec.name for step in profile.steps[Kind.SCORE]]
        self._choose_timer = timers["choose"]
        self._choices = 0

    def choose(self, context: RoutingContext, tried: AbstractSet[str]) -> int | None:
        """The row of the best worker whose engine's URL is not in `tried`; None: none is left."""
        began_s = self._now_s()
        self._choices += 1
        laps = None if self._choices % _SAMPLED else Laps(self._now_s)
        candidates = self._filtered(context, tried, laps)
        row: int | None = None
        if candidates.any():
            costs = self._costs(context, candidates, laps)
            row = self._picker.pick(context, candidates, costs)
            if laps:
                laps.end(self._pick_timer)
            for follower in self._followers:
                follower.picked(context, row)
        self._choose_timer.observe(self._now_s() - began_s)
        return row

    def explain(self, context: RoutingContext) -> Explanation:
        """The verdicts of all filters and scorers on a first attempt, as of now; counts nothing."""
        candidates = self._reachable(context, frozenset())
        kept: dict[str, Mask] = {}
        for name, (plugin, _) in zip(self._filter_names, self._filters, strict=True):
            before = candidates.copy()
            plugin.filter(context, candidates)
            kept[name] = candidates | ~before
        if not candidates.any():
            return Explanation(kept, {}, np.zeros(len(candidates)))
        values = {
            name: plugin.score(context, candidates).copy()
            for name, (plugin, _, _) in zip(self._scorer_names, self._scorers, strict=True)
        }
        return Explanation(kept, values, self._costs(context, candidates, None))

    def _filtered(
        self, context: RoutingContext, tried: AbstractSet[str], laps: Laps | None
    ) -> Mask:
        candidates = self._reachable(context, tried)
        for plugin, timer in self._filters:
            plugin.filter(context, candidates)
            if laps:
                laps.end(timer)
        if tried:
            # A second failure would cost the client more than a worse choice.
            sound = candidates & (self._fleet.columns.failures == 0)
            candidates = sound if sound.any() else candidates
        return candidates

    def _reachable(self, context: RoutingContext, tried: AbstractSet[str]) -> Mask:
        """The workers that the request may go to before any filter, with counts up to date."""
        self._fleet.tracker.refresh()
        candidates = self._fleet.columns.present.copy()
        request = context.get(REQUEST)
        only = None if request is None else request.engine_url
        if tried or only is not None:
            for worker in self._fleet:
                url = worker.record.engine_url
                if url in tried or (only is not None and url != only):
                    candidates[worker.row] = False
        return candidates

    def _costs(self, context: RoutingContext, candidates: Mask, laps: Laps | None) -> Values:
        costs: Values | None = None
        for plugin, factor, timer in self._scorers:
            values = plugin.score(context, candidates)
            if factor != 1.0:
                values = values * factor
            costs = values if costs is None else costs + values
            if laps:
                laps.end(timer)
        return np.zeros(len(candidates)) if costs is None else costs
