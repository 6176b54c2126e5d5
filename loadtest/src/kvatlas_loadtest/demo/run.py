"""One policy's run: plays the plan through a new fleet and reads the results."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from kvatlas_hashing import chunk_hashes, sequence_hashes
from kvatlas_loadtest.demo.agreement import Agreement, compare
from kvatlas_loadtest.demo.plan import Plan
from kvatlas_loadtest.demo.replay import Outcome, replay
from kvatlas_loadtest.demo.report import shown_progress
from kvatlas_loadtest.demo.results import Summary, summarize
from kvatlas_loadtest.fleet import Fleet
from kvatlas_loadtest.indexer_rpc import replica
from kvatlas_loadtest.prometheus import Histogram, total
from kvatlas_loadtest.supervisor import Process

ROUTING = "kvatlas_frontend_routing_seconds"
EVICTED = "kvatlas_mock_engine_evicted_blocks_total"
FALLBACK = "fallback"
"""Prefix of every `x-kvatlas-reason` of a request that was routed without matches."""


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's results.

    Attributes:
        agreement: comparison of the indexers; None: only one was running.
        remarks: further facts, one sentence each.
        lost: processes that ended unexpectedly.
    """

    summary: Summary
    agreement: Agreement | None
    remarks: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def succeeded(self) -> bool:
        """Every request was answered, the replicas agree, and no process is lost."""
        differ = self.agreement is not None and bool(self.agreement.differences)
        return not (self.summary.errors or differ or self.lost)


async def play(plan: Plan, fleet: Fleet, console: Console, *, kill_indexer: bool) -> Run:
    """Play the plan; with `kill_indexer`, SIGKILL the last indexer when half of it is answered."""
    indexers = list(fleet.indexers)
    victim = indexers.pop() if kill_indexer else None
    half = len(plan.requests) // 2
    remarks: list[str] = []
    with shown_progress(console, fleet.shape.policy, len(plan.requests)) as show:

        def progress(finished: int) -> None:
            show(finished)
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
