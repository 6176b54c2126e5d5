"""A selector: one pass of prepare, filter, score and pick over a context."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol, cast

import numpy as np

from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.routing.check import CheckedProfile
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Filter, Kind, Picker, Plugin, Preparer, Scorer, Services


class Timer(Protocol):
    """Records a stage's time, in seconds."""

    def observe(self, amount: float) -> None:
        """Record one duration."""
        ...


class Selector:
    """A checked profile with its plugins built. Only this class measures the time of stages.

    All requests of one event loop share it; a request's own values are on its context.
    """

    def __init__(
        self,
        profile: CheckedProfile,
        services: Services,
        *,
        timers: Mapping[str, Timer],
        now_s: Callable[[], float],
    ) -> None:
        def built(kind: Kind) -> list[Plugin]:
            return [step.spec.build(services, step.params) for step in profile.steps[kind]]

        self.name = profile.name
        self._fleet: Fleet = services.fleet
        self._now_s = now_s
        self._prepares = [
            (cast("Preparer", plugin), timers[step.spec.stage] if step.spec.stage else None)
            for plugin, step in zip(built(Kind.PREPARE), profile.steps[Kind.PREPARE], strict=True)
        ]
        self._filters = [cast("Filter", plugin) for plugin in built(Kind.FILTER)]
        self._scores = [cast("Scorer", plugin) for plugin in built(Kind.SCORE)]
        (pick,) = built(Kind.PICK)
        self._pick = cast("Picker", pick)
        self.reason = self._pick.reason
        self._choose_timer = timers["choose"]

    async def prepare(self, context: RoutingContext) -> None:
        """Fill the context's slots; called once per request."""
        for plugin, timer in self._prepares:
            began_s = self._now_s()
            await plugin.prepare(context)
            if timer is not None:
                timer.observe(self._now_s() - began_s)

    def choose(self, context: RoutingContext, tried: AbstractSet[str]) -> int | None:
        """The row of the best worker whose engine's URL is not in `tried`; None: none is left."""
        began_s = self._now_s()
        candidates = self._fleet.columns.present.copy()
        if tried:
            for worker in self._fleet:
                if worker.record.engine_url in tried:
                    candidates[worker.row] = False
        for plugin in self._filters:
            plugin.filter(context, candidates)
        if tried:
            # A second failure would cost the client more than a worse choice.
            sound = candidates & (self._fleet.columns.failures == 0)
            candidates = sound if sound.any() else candidates
        row: int | None = None
        if candidates.any():
            costs = np.zeros(candidates.shape[0])
            for plugin in self._scores:
                plugin.score(context, costs)
            row = self._pick.pick(context, candidates, costs)
        self._choose_timer.observe(self._now_s() - began_s)
        return row
