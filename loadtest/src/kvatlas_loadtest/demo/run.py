"""One policy's run: play the plan through a fleet that just started, and read what came of it."""

from dataclasses import dataclass

from rich.console import Console

from kvatlas_loadtest.demo.agreement import Agreement
from kvatlas_loadtest.demo.plan import Plan
from kvatlas_loadtest.demo.replay import Outcome, replay
from kvatlas_loadtest.demo.report import shown_progress
from kvatlas_loadtest.demo.results import Summary, summarize
from kvatlas_loadtest.fleet import Fleet
from kvatlas_loadtest.prometheus import Histogram, total
from kvatlas_loadtest.supervisor import Process

ROUTING = "kvatlas_frontend_routing_seconds"
EVICTED = "kvatlas_mock_engine_evicted_blocks_total"
FALLBACK = "fallback"
"""What every `x-kvatlas-reason` begins with that tells of a request routed without matches."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run's figures, and what its indexers said of one another, where there were several."""

    summary: Summary
    agreement: Agreement | None

    @property
    def whole(self) -> bool:
        """Every request was answered, and no replica contradicts another."""
        return not self.summary.errors and not (self.agreement and self.agreement.differences)


async def play(plan: Plan, fleet: Fleet, console: Console, *, kill_indexer: bool) -> Run:
    """Play the plan; with `kill_indexer`, SIGKILL the last indexer when half of it is answered."""
    indexers = list(fleet.indexers)
    victim: Process | None = indexers.pop() if kill_indexer else None
    half = len(plan.requests) // 2
    with shown_progress(console, fleet.shape.policy, len(plan.requests)) as told:

        def progress(finished: int) -> None:
            told(finished)
            if victim is not None and finished == half:
                victim.kill()

        outcomes = await replay(
            plan.requests, [frontend.address() for frontend in fleet.frontends], progress=progress
        )
    frontends = await fleet.frontend_metrics()
    engines = await fleet.engine_metrics()
    return Run(
        summarize(
            plan,
            outcomes,
            block_size=fleet.shape.block_size,
            evictions=int(total(engines, EVICTED)),
            fallbacks=_fallbacks(outcomes),
            routing_s=Histogram.read(frontends, ROUTING, stage="total"),
        ),
        await _agreement(plan, fleet, indexers) if len(indexers) > 1 else None,
    )


def _fallbacks(outcomes: list[Outcome]) -> int:
    return sum(outcome.reason.startswith(FALLBACK) for outcome in outcomes)


async def _agreement(plan: Plan, fleet: Fleet, indexers: list[Process]) -> Agreement: ...
