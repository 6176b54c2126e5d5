"""Filter plugins: remove workers that cannot serve the request."""

from typing import Any, Final

from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Kind, Mask, NoParams, PluginSpec, Services
from kvatlas_frontend.routing.slots import REQUEST


class AvailablePlugin:
    """Removes workers whose circuit breaker is open.

    Those whose engines fail requests come back if no others are left: a client whose requests make
    every engine fail must not close the fleet to all.
    """

    def __init__(self, services: Services, _: NoParams) -> None:
        self._fleet = services.fleet
        self._now_s = services.now_s

    def filter(self, _: RoutingContext, candidates: Mask) -> None:
        """See `Filter`."""
        columns, now_s = self._fleet.columns, self._now_s()
        candidates &= columns.unreachable_until_s <= now_s
        sound = columns.failing_until_s <= now_s
        if (candidates & sound).any():
            candidates &= sound


class ServesModelPlugin:
    """Removes workers that do not serve the requested adapter."""

    def __init__(self, _: Services, __: NoParams) -> None:
        pass

    def filter(self, context: RoutingContext, candidates: Mask) -> None:
        """See `Filter`."""
        rows = context[REQUEST].model.rows
        if rows is not None:
            # Rows added after the route was made are not known to serve the adapter.
            candidates[: len(rows)] &= rows
            candidates[len(rows) :] = False


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec("available", Kind.FILTER, NoParams, AvailablePlugin),
    PluginSpec("serves-model", Kind.FILTER, NoParams, ServesModelPlugin, reads=(REQUEST,)),
)
