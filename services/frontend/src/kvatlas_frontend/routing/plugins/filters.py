"""Filter plugins: remove workers that cannot serve the request, or should not.

`concurrency-cap` and `saturation` leave the candidates as they are if they would remove all of them: a
fleet that is overloaded still serves. With `strict: true` they remove them, and the client gets a 503.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from pydantic import Field

from kvatlas_chassis import Settings
from kvatlas_frontend.fleet.columns import Columns
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Kind, Mask, NoParams, PluginSpec, Services, Values
from kvatlas_frontend.routing.slots import CHUNK_HASHES, MATCHES, REQUEST

# Some filters leave the candidates as they are if none would be left. So they run after those that
# never do, and judge only workers that can serve the request.
_CAN_SERVE: Final = ("serves-model", "role", "label")
_FIRST: Final = (*_CAN_SERVE, "available")


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


class RoleParams(Settings):
    """`roles`: the worker has one of these; "" stands for workers without a role."""

    roles: tuple[str, ...] = Field(min_length=1)


class RolePlugin:
    """Keeps workers of some roles, as `prefill`, `decode` or none."""

    def __init__(self, services: Services, params: RoleParams) -> None:
        self._column = services.fleet.columns.role
        self._codes = [self._column.code(role) for role in params.roles if role]
        if "" in params.roles:
            self._codes.append(0)

    def filter(self, _: RoutingContext, candidates: Mask) -> None:
        """See `Filter`."""
        candidates &= _is_any(self._column.codes, self._codes)


class LabelParams(Settings):
    """`name`: the label. `values`: the worker's is one of these."""

    name: str = Field(min_length=1)
    values: tuple[str, ...] = Field(min_length=1)


class LabelPlugin:
    """Keeps workers whose label has one of the values; to prefer them, score by `locality`."""

    def __init__(self, services: Services, params: LabelParams) -> None:
        self._column = services.fleet.columns.labels[params.name]
        self._codes = [self._column.code(value) for value in params.values]

    def filter(self, _: RoutingContext, candidates: Mask) -> None:
        """See `Filter`."""
        candidates &= _is_any(self._column.codes, self._codes)


class ConcurrencyCapParams(Settings):
    """`requests`: most requests in flight on a worker. `strict`: even if none is left."""

    requests: int = Field(gt=0)
    strict: bool = False


class ConcurrencyCapPlugin:
    """Removes workers with as many requests in flight as are allowed, from all frontends."""

    def __init__(self, services: Services, params: ConcurrencyCapParams) -> None:
        self._columns = services.fleet.columns
        self._requests = params.requests
        self._strict = params.strict

    def filter(self, _: RoutingContext, candidates: Mask) -> None:
        """See `Filter`."""
        columns = self._columns
        free = columns.requests + columns.requests_elsewhere < self._requests
        _keep(candidates, free, strict=self._strict)


class SaturationParams(Settings):
    """Limits of the engine's own figures; a worker beyond any of them is saturated.

    `queue_max`: requests that wait in the engine. `kv_usage_max`: share of its cache in use.
    `signal_age_max_s`: older figures tell nothing, and the worker counts as not saturated.
    The limits of the queue and of the cache are the defaults of the Gateway API Inference Extension
    (`pkg/epp/saturationdetector`).
    """

    queue_max: int = Field(default=5, ge=0)
    kv_usage_max: float = Field(default=0.8, gt=0, le=1)
    signal_age_max_s: float = Field(default=10.0, gt=0)
    strict: bool = False


class SaturationPlugin:
    """Removes workers whose engine reports a long queue or a full cache."""

    def __init__(self, services: Services, params: SaturationParams) -> None:
        self._columns = services.fleet.columns
        self._now_s = services.now_s
        self._params = params

    def filter(self, _: RoutingContext, candidates: Mask) -> None:
        """See `Filter`."""
        columns, params = self._columns, self._params
        free = columns.requests_waiting <= params.queue_max
        free &= columns.kv_usage <= params.kv_usage_max
        free |= columns.load_told_s < self._now_s() - params.signal_age_max_s
        _keep(candidates, free, strict=params.strict)


class PrefixAffinityParams(Settings):
    """`share_min`: the worker holds at least this share of the prompt's usable blocks."""

    share_min: float = Field(default=0.8, gt=0, le=1)


class PrefixAffinityPlugin:
    """Keeps the workers that hold most of the prompt, if there are any; else all stay."""

    def __init__(self, _: Services, params: PrefixAffinityParams) -> None:
        self._share_min = params.share_min

    def filter(self, context: RoutingContext, candidates: Mask) -> None:
        """See `Filter`."""
        blocks = len(context[CHUNK_HASHES])
        if not blocks:
            return
        held = np.zeros(len(candidates), dtype=np.bool_)
        depths = context[MATCHES].depths
        held[: len(depths)] = depths >= self._share_min * blocks
        _keep(candidates, held, strict=False)


class ImbalanceParams(Settings):
    """`requests`: a larger difference between the busiest and the idlest worker is an imbalance."""

    requests: int = Field(default=16, ge=0)


class ImbalancePlugin:
    """Keeps only the workers with the fewest requests while the fleet is out of balance.

    AIBrix's check before it looks at prefixes: the most requests on a worker minus the fewest, above
    16 (`pkg/plugins/gateway/algorithms/README.md`, `..._IMBALANCE_ABS_COUNT`).
    """

    def __init__(self, services: Services, params: ImbalanceParams) -> None:
        self._columns = services.fleet.columns
        self._requests = params.requests

    def filter(self, _: RoutingContext, candidates: Mask) -> None:
        """See `Filter`."""
        load = _requests(self._columns)
        known = load[candidates]
        if len(known) and known.max() - known.min() > self._requests:
            candidates &= load == known.min()


class DeviationParams(Settings):
    """`deviations`: standard deviations above the mean of the candidates' requests."""

    deviations: float = Field(default=2.0, ge=0)


class DeviationPlugin:
    """Removes workers with far more requests than the others: above mean + 2 standard deviations.

    AIBrix's guard against hot spots (`pkg/plugins/gateway/algorithms/README.md`,
    `..._STANDARD_DEVIATION_FACTOR`). The deviation is the population's. One worker always stays: the
    fewest requests are not above the mean.
    """

    def __init__(self, services: Services, params: DeviationParams) -> None:
        self._columns = services.fleet.columns
        self._deviations = params.deviations

    def filter(self, _: RoutingContext, candidates: Mask) -> None:
        """See `Filter`."""
        load = _requests(self._columns)
        known = load[candidates]
        if len(known):
            # The same as known.mean() and known.std(), which cost ten times as much on few workers.
            mean = float(known.sum()) / len(known)
            variance = max(0.0, float(known.dot(known)) / len(known) - mean * mean)
            candidates &= load <= mean + self._deviations * math.sqrt(variance)


def _requests(columns: Columns) -> Values:
    return (columns.requests + columns.requests_elsewhere).astype(np.float64)


def _is_any(codes: Any, wanted: Sequence[int]) -> Mask:  # noqa: ANN401 - int32[rows]
    kept = np.zeros(len(codes), dtype=np.bool_)
    for code in wanted:
        kept |= codes == code
    return kept


def _keep(candidates: Mask, kept: Mask, *, strict: bool) -> None:
    if strict or (candidates & kept).any():
        candidates &= kept


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec("available", Kind.FILTER, NoParams, AvailablePlugin, after=_CAN_SERVE),
    PluginSpec("serves-model", Kind.FILTER, NoParams, ServesModelPlugin, (REQUEST,)),
    PluginSpec("role", Kind.FILTER, RoleParams, RolePlugin),
    PluginSpec("label", Kind.FILTER, LabelParams, LabelPlugin),
    PluginSpec(
        "concurrency-cap", Kind.FILTER, ConcurrencyCapParams, ConcurrencyCapPlugin, after=_FIRST
    ),
    PluginSpec("saturation", Kind.FILTER, SaturationParams, SaturationPlugin, after=_FIRST),
    PluginSpec("imbalance", Kind.FILTER, ImbalanceParams, ImbalancePlugin, after=_FIRST),
    PluginSpec("deviation", Kind.FILTER, DeviationParams, DeviationPlugin, after=_FIRST),
    PluginSpec(
        "prefix-affinity",
        Kind.FILTER,
        PrefixAffinityParams,
        PrefixAffinityPlugin,
        (CHUNK_HASHES, MATCHES),
        after=(*_FIRST, "concurrency-cap", "saturation", "imbalance", "deviation"),
    ),
)
