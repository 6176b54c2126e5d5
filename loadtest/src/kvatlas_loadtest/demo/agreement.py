"""Whether the indexer replicas, which never speak to one another, say the same."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from kvatlas_loadtest.codec import Status, Worker

Matches = frozenset[tuple[Worker, int]]
"""An answer: worker and depth."""

AskStatus = Callable[[str], Coroutine[Any, Any, Status]]
AskMatches = Callable[[str, int], Coroutine[Any, Any, Matches]]
"""The answer of a replica to the prompt of that number."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a comparison found.

    Attributes:
        replicas: how many were compared.
        memberships: (worker, block) pairs that each of them holds, compared by digest.
        prompts: how many prompts were looked up on each.
        matched: (worker, block) pairs that their equal answers named.
        differences: what differs, one line each; empty: they agree.
    """

    replicas: int
    memberships: int
    prompts: int
    matched: int
    differences: tuple[str, ...]

    def sentence(self) -> str:
        """For the terminal."""
        if self.differences:
            return (
                f"the {self.replicas} indexers differ in {len(self.differences)} places; first: "
                + self.differences[0]
            )
        return (
            f"{self.replicas} indexers give the same answers: {self.memberships:,} memberships by "
            f"digest, {self.matched:,} in the answers to {self.prompts:,} prompts"
        )


async def compare(
    replicas: Sequence[str],
    prompts: int,
    *,
    ask_status: AskStatus,
    ask_matches: AskMatches,
    settle_s: float = 10.0,
) -> Agreement:
    """Compare digests of every worker, and the answers to every prompt, on all replicas.

    Waits at most `settle_s` until all have applied the same events, since a replica may be a few
    milliseconds behind; after that a difference is a difference.
    """
    statuses = await _settled(replicas, ask_status, settle_s=settle_s)
    differences = _status_differences(replicas, statuses)
    matched = 0
    for prompt in range(prompts):
        answers = await asyncio.gather(*(ask_matches(replica, prompt) for replica in replicas))
        matched += sum(depth for _, depth in answers[0])
        differences += [
            f"prompt {prompt}: {replicas[0]} says {sorted(answers[0])}, {replica} {sorted(other)}"
            for replica, other in zip(replicas[1:], answers[1:], strict=True)
            if other != answers[0]
        ]
    return Agreement(
        replicas=len(replicas),
        memberships=statuses[0].memberships,
        prompts=prompts,
        matched=matched,
        differences=tuple(differences),
    )


async def _settled(
    replicas: Sequence[str], ask_status: AskStatus, *, settle_s: float
) -> list[Status]:
    """Statuses of all replicas once two readings are alike everywhere, or the last ones in time."""
    deadline = asyncio.get_running_loop().time() + settle_s
    before: list[dict[Worker, int]] = []
    while True:
        statuses = list(await asyncio.gather(*(ask_status(replica) for replica in replicas)))
        applied = [{w: s.last_event_id for w, s in status.workers.items()} for status in statuses]
        alike = all(positions == applied[0] for positions in applied)
        if (alike and applied == before) or asyncio.get_running_loop().time() > deadline:
            return statuses
        before = applied
        await asyncio.sleep(0.2)


def _status_differences(replicas: Sequence[str], statuses: Sequence[Status]) -> list[str]:
    differences: list[str] = []
    first = statuses[0].workers
    for replica, status in zip(replicas[1:], statuses[1:], strict=True):
        for worker in sorted(first.keys() | status.workers.keys()):
            ours, theirs = first.get(worker), status.workers.get(worker)
            if ours != theirs:
                differences.append(
                    f"worker {worker[0]}/{worker[1]}: {replicas[0]} holds {ours}, {replica} {theirs}"
                )
    return differences
