"""Score plugins in tokens: costs in tokens of prefill that an engine has to compute first."""

from typing import Any, Final

from pydantic import Field

from kvatlas_chassis import Settings
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Kind, Mask, PluginSpec, Services, Unit, Values
from kvatlas_frontend.routing.slots import MATCHES, TOKENS


class PrefillParams(Settings):
    """Weights of the two parts of a prompt's prefill time.

    `miss_weight`: per token of this prompt that the worker does not hold; above 1 favours hits over
    even load. `queue_weight`: per token of earlier prompts that is not computed yet.
    """

    miss_weight: float = Field(default=1.0, ge=0)
    queue_weight: float = Field(default=1.0, ge=0)


class PrefillPlugin:
    """Tokens of prefill before this request's first token: its own misses and the queue's."""

    def __init__(self, services: Services, params: PrefillParams) -> None:
        self._columns = services.fleet.columns
        self._block_size = services.block_size
        self._miss_weight = params.miss_weight
        self._queue_weight = params.queue_weight

    def score(self, context: RoutingContext, _: Mask) -> Values:
        """See `Scorer`."""
        costs: Values = self._queue_weight * self._columns.prefill_tokens
        costs += self._miss_weight * len(context[TOKENS].ids)
        # Rows added after the matches are not known to hold anything.
        depths = context[MATCHES].depths
        costs[: len(depths)] -= (self._miss_weight * self._block_size) * depths
        return costs


class LoadParams(Settings):
    """Costs of what is in flight, in tokens of prefill.

    `per_request`: each request on the worker, from this frontend or others; it is part of every
    step. `per_token`: each token of a prompt in flight; every step reads its cache.
    """

    per_request: float = Field(default=0.0, ge=0)
    per_token: float = Field(default=0.0, ge=0)


class LoadPlugin:
    """Cost in tokens of prefill of the load that the worker already has."""

    def __init__(self, services: Services, params: LoadParams) -> None:
        self._columns = services.fleet.columns
        self._per_request = params.per_request
        self._per_token = params.per_token

    def score(self, _: RoutingContext, __: Mask) -> Values:
        """See `Scorer`."""
        columns = self._columns
        costs: Values = self._per_request * (columns.requests + columns.requests_elsewhere)
        if self._per_token:
            costs += self._per_token * columns.active_tokens
        return costs


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec(
        "prefill", Kind.SCORE, PrefillParams, PrefillPlugin, (TOKENS, MATCHES), unit=Unit.TOKENS
    ),
    PluginSpec("load", Kind.SCORE, LoadParams, LoadPlugin, unit=Unit.TOKENS),
)
