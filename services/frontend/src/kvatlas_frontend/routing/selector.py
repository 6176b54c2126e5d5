"""A selector: one pass of Prepare, Filter, Score, Pick over a context."""

from collections.abc import Callable, Mapping
from typing import Protocol, cast

import numpy as np

from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import WorkerKey
from kvatlas_frontend.routing.check import CheckedProfile
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Filter, Kind, Pick, Plugin, Prepare, Score, Services


class Timer(Protocol):
    """Counts the time of a stage, in seconds."""

    def observe(self, amount: float) -> None:
        """Count one duration."""
        ...


class Selector:
    """A checked profile with its plugins built. Every stage is timed here and nowhere else.

    Shared by all requests of one event loop; what belongs to a request is on its context.
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
            (cast("Prepare", plugin), timers[step.spec.stage] if step.spec.stage else None)
            for plugin, step in zip(built(Kind.PREPARE), profile.steps[Kind.PREPARE], strict=True)
        ]
        self._filters = [cast("Filter", plugin) for plugin in built(Kind.FILTER)]
        self._scores = [cast("Score", plugin) for plugin in built(Kind.SCORE)]
        (pick,) = built(Kind.PICK)
        self._pick = cast("Pick", pick)
        self.reason = self._pick.reason
        self._choose_timer = timers["choose"]

    async def prepare(self, context: RoutingContext) -> None:
        """Fill the context's slots; once a request."""
        for plugin, timer in self._prepares:
            began_s = self._now_s()
            await plugin.prepare(context)
            if timer is not None:
                timer.observe(self._now_s() - began_s)

    def choose(self, context: RoutingContext, tried: frozenset[WorkerKey]) -> int | None:
        """The row of the best worker that is not in `tried`; None: there is none. Never waits."""
        began_s = self._now_s()
        candidates = self._fleet.columns.present.copy()
        for key in tried:
            gone = self._fleet.rows.get(key)
            if gone is not None:
                candidates[gone] = False
        for plugin in self._filters:
            plugin.filter(context, candidates)
        row: int | None = None
        if candidates.any():
            costs = np.zeros(candidates.shape[0])
            for plugin in self._scores:
                plugin.score(context, costs)
            row = self._pick.pick(context, candidates, costs)
        self._choose_timer.observe(self._now_s() - began_s)
        return row
