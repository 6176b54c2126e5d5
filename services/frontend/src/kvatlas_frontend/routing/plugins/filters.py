"""Filter plugins: who can be asked at all."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Kind, NoParams, PluginSpec, Services
from kvatlas_frontend.routing.slots import REQUEST


class AvailablePlugin:
    """Not the workers whose engines could not be reached a moment ago."""

    def __init__(self, services: Services, _: NoParams) -> None:
        self._fleet = services.fleet
        self._now_s = services.now_s

    def filter(self, _: RoutingContext, candidates: NDArray[np.bool_]) -> None:
        """As `Filter` says."""
        candidates &= self._fleet.columns.out_until_s <= self._now_s()


class ServesModelPlugin:
    """Only workers that serve the requested adapter."""

    def __init__(self, _: Services, __: NoParams) -> None:
        pass

    def filter(self, context: RoutingContext, candidates: NDArray[np.bool_]) -> None:
        """As `Filter` says."""
        rows = context[REQUEST].model.rows
        if rows is not None:
            # Rows that came after the route was made do not serve it yet, as far as is known.
            candidates[: len(rows)] &= rows
            candidates[len(rows) :] = False


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec("available", Kind.FILTER, NoParams, AvailablePlugin),
    PluginSpec("serves-model", Kind.FILTER, NoParams, ServesModelPlugin, reads=(REQUEST,)),
)
