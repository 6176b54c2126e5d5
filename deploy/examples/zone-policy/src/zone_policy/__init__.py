"""A scorer of one's own: prefers the workers of my zone."""

import numpy as np

from kvatlas_frontend.routing.api import (
    Kind,
    Mask,
    PluginSpec,
    RoutingContext,
    Services,
    Settings,
    Unit,
    Values,
)


class MyZoneParams(Settings):
    """`zone`: value of the label `zone` of the workers to prefer."""

    zone: str


class MyZonePlugin:
    """1 for workers of my zone, 0 for the others."""

    def __init__(self, services: Services, params: MyZoneParams) -> None:
        self._zones = services.fleet.columns.labels["zone"]
        self._mine = self._zones.code(params.zone)

    def score(self, _context: RoutingContext, _candidates: Mask) -> Values:
        """A value for each row of the worker table."""
        return (self._zones.codes == self._mine).astype(np.float64)


SPECS = [PluginSpec("my-zone", Kind.SCORE, MyZoneParams, MyZonePlugin, unit=Unit.SHARE)]
