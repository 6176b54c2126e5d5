"""One policy's run: play the plan through a fleet that just started, and read what came of it."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from kvatlas_hashing import chunk_hashes, sequence_hashes
from kvatlas_loadtest.codec import replica
from kvatlas_loadtest.demo.agreement import Agreement, compare
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
    """One policy's figures, and what was found besides.

    Attributes:
        agreement: what the indexers said of one another; None: only one was up.
        remarks: what else to tell, a sentence each.
        lost: processes that ended though nobody ended them.
    """

    summary: Summary
    agreement: Agreement | None
    remarks: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Every request was answered, no replica contradicts another, no process is gone."""
        differ = self.agreement is not None and bool(self.agreement.differences)
        return not (self.summary.errors or differ or self.lost)


async def play(plan: Plan, fleet: Fleet, console: Console, *, kill_indexer: bool) -> Run:
    """Play the plan; with `kill_indexer`, SIGKILL the last indexer when half of it is answered."""
    indexers = list(fleet.indexers)
    victim = indexers.pop() if kill_indexer else None
    half = len(plan.requests) // 2
    remarks: list[str] = []
    with shown_progress(console, fleet.shape.policy, len(plan.requests)) as told:

        def progress(finished: int) -> None:
            told(finished)
            if victim is not None and finished == half:
                victim.kill()
                remarks.append(f"{victim.name} was killed after {half:,} answers")

        outcomes = await replay(
            plan.requests, [frontend.address() for frontend in fleet.frontends], progress=progress
        )
    summary = summarize(
        plan,
        outcomes,
        block_size=fleet.shape.block_size,
        evictions=int(total(await fleet.engine_metrics(), EVICTED)),
        fallbacks=_fallbacks(outcomes),
        routing_s=Histogram.read(await fleet.frontend_metrics(), ROUTING, stage="total"),
    )
    agreement = await _agreement(plan, fleet, indexers) if len(indexers) > 1 else None
    lost = [name for name in fleet.supervisor.ended() if victim is None or name != victim.name]
    return Run(summary, agreement, tuple(remarks), tuple(lost))


def _fallbacks(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.reason.startswith(FALLBACK) for outcome in outcomes)


async def _agreement(plan: Plan, fleet: Fleet, indexers: Sequence[Process]) -> Agreement:
    size = fleet.shape.block_size
    prompts = [
        sequence_hashes(chunk_hashes(request.tokens, size))
        for request in plan.requests
        if len(request.tokens) >= size
    ]
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(replica(i.address())) for i in indexers]
        return await compare(replicas, prompts)
