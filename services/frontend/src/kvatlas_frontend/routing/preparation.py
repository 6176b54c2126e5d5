"""Preparation: fills a request's slots, once, for all selectors of a workflow."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from kvatlas_frontend.routing.check import CheckedProfile, check_together
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Kind, Preparer, Services
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
        self._steps = [
            (
                cast("Preparer", step.spec.build(services, step.params)),
                step.spec.writes,
                timers[step.spec.stage] if step.spec.stage else None,
                plugin_timers(Kind.PREPARE.value, step.spec.name),
            )
            for step in check_together(profiles)
        ]

    async def prepare(self, context: RoutingContext) -> None:
        """Fill the context's slots; skip a plugin whose slots all have a value already."""
        for plugin, writes, stage_timer, plugin_timer in self._steps:
            if writes and all(slot in context for slot in writes):
                continue
            began_s = self._now_s()
            await plugin.prepare(context)
            took_s = self._now_s() - began_s
            plugin_timer.observe(took_s)
            if stage_timer is not None:
                stage_timer.observe(took_s)
