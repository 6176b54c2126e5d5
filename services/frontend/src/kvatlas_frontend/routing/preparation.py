"""Preparation: fills a request's slots, once, for all selectors of a workflow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kvatlas_frontend.routing.check import CheckedProfile, check_together
from kvatlas_frontend.routing.context import RoutingContext, Slot
from kvatlas_frontend.routing.plugin import ImmediatePreparer, Kind, Preparer, Services
from kvatlas_frontend.routing.timers import PluginTimers, Timer


class Preparation:
    """The prepare plugins of one or more profiles, each plugin once.

    All requests of one event loop share it; a request's own values are on its context.
    """

    def __init__(
        self,
        profiles: Sequence[CheckedProfile],
        services: Services,
        *,
        timers: Mapping[str, Timer],
        plugin_timers: PluginTimers,
        now_s: Callable[[], float],
    ) -> None:
        """Build the plugins.

        Raises:
            ProfileError: the profiles cannot share their preparation.
        """
        self._now_s = now_s
        self._steps: list[_Step] = []
        for step in check_together(profiles):
            plugin = step.spec.build(services, step.params)
            counted = [plugin_timers(Kind.PREPARE.value, step.spec.name)]
            if step.spec.stage:
                counted.append(timers[step.spec.stage])
            immediate = plugin if isinstance(plugin, ImmediatePreparer) else None
            self._steps.append(
                _Step(cast("Preparer", plugin), immediate, step.spec.writes, tuple(counted))
            )

    def prepare_now(self, context: RoutingContext) -> bool:
        """Fill the context's slots as far as nothing has to be waited for; True: all of them."""
        return all(
            self._is_written(step, context) or self._write_now(step, context)
            for step in self._steps
        )

    async def prepare(self, context: RoutingContext) -> None:
        """Fill the context's slots; skip a plugin whose slots all have a value already."""
        for step in self._steps:
            if self._is_written(step, context) or self._write_now(step, context):
                continue
            began_s = self._now_s()
            await step.plugin.prepare(context)
            step.observe(self._now_s() - began_s)

    def _is_written(self, step: "_Step", context: RoutingContext) -> bool:
        return bool(step.writes) and all(slot in context for slot in step.writes)

    def _write_now(self, step: "_Step", context: RoutingContext) -> bool:
        if step.immediate is None:
            return False
        took_s = step.immediate.prepare_now(context)
        if took_s is None:
            return False
        step.observe(took_s)
        return True


@dataclass(frozen=True, slots=True)
class _Step:
    """A plugin, and where its time is counted."""

    plugin: Preparer
    immediate: ImmediatePreparer | None  # the same plugin, if it may have nothing to wait for
    writes: tuple[Slot[Any], ...]
    timers: tuple[Timer, ...]

    def observe(self, took_s: float) -> None:
        for timer in self.timers:
            timer.observe(took_s)
