"""Workflows make a routing plan: they prepare a request once, and ask one or more selectors.

Single dispatch uses one selector.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.fleet.load_tracker import Ticket
from kvatlas_frontend.fleet.table import Fleet, Worker
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.preparation import Preparation
from kvatlas_frontend.routing.selector import Explanation, Selector
from kvatlas_frontend.routing.slots import MATCHES, REQUEST, TOKEN_ESTIMATE, TOKENS, RoutingRequest


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """One worker for one attempt; the receiver releases the ticket."""

    worker: Worker
    ticket: Ticket
    depth: int  # blocks that the worker is believed to hold
    reason: Reason


class SingleDispatch:
    """Sends every request to one worker, and to another if that one fails."""

    def __init__(
        self, preparation: Preparation, selector: Selector, fleet: Fleet, *, block_size: int
    ) -> None:
        self._preparation = preparation
        self._selector = selector
        self._fleet = fleet
        self._block_size = block_size

    async def route(self, request: RoutingRequest) -> tuple[RoutingContext, RoutingPlan | None]:
        """The first plan, and the context from which `plan` can choose again."""
        context = self.begin(request)
        await self._preparation.prepare(context)
        return context, self.plan(context, set())

    def begin(self, request: RoutingRequest) -> RoutingContext:
        """A context of the request, on which nothing has been prepared."""
        context = RoutingContext()
        context[REQUEST] = request
        return context

    def prepare_now(self, context: RoutingContext) -> bool:
        """Prepare what needs no waiting; True: `plan` may follow, False: first `prepare`."""
        return self._preparation.prepare_now(context)

    async def prepare(self, context: RoutingContext) -> None:
        """Prepare the rest."""
        await self._preparation.prepare(context)

    def plan(self, context: RoutingContext, tried: AbstractSet[str]) -> RoutingPlan | None:
        """Choose a worker and count the request on it, with no await in between.

        `tried`: URLs of the engines that already failed this request. Returns None if none is left.
        """
        row = self._selector.choose(context, tried)
        if row is None:
            return None
        matches = context.get(MATCHES)
        depth = int(matches.depths[row]) if matches is not None else 0
        ticket = self._fleet.tracker.begin(
            row,
            prompt_tokens=_prompt_tokens(context),
            cached_tokens=depth * self._block_size,
        )
        reason = Reason.RETRY if tried else self._reason(context, depth)
        return RoutingPlan(self._fleet.worker(row), ticket, depth, reason)

    def explain(self, context: RoutingContext) -> Explanation:
        """How the choice for a prepared request comes about; nothing is counted."""
        return self._selector.explain(context)

    def _reason(self, context: RoutingContext, depth: int) -> Reason:
        matches = context.get(MATCHES)
        if matches is None:
            return self._selector.reason
        if matches.failure is not None:
            return matches.failure
        opaque = context[REQUEST].body.opaque
        if opaque is not None:
            return opaque.reason
        if depth:
            return Reason.KV_MATCH
        return Reason.LOAD_OUTWEIGHS if matches.depths.any() else Reason.NO_MATCH


def _prompt_tokens(context: RoutingContext) -> int:
    """The prompt's length as it counts in flight: by its tokens, else by an estimate, else 0."""
    tokens = context.get(TOKENS)
    if tokens is not None and tokens.failure is None:
        return len(tokens.ids)
    return context.get(TOKEN_ESTIMATE) or 0
