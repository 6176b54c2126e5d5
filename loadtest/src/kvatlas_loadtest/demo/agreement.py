"""Checks that the indexer replicas, which never talk to one another, give the same answers."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvatlas_loadtest.indexer_rpc import Status
from kvatlas_wire import WorkerKey

_POLL_S = 0.2


class ReplicaClient(Protocol):
    """A replica, as the comparison asks it."""

    @property
    def address(self) -> str:
        """Its `host:port`."""
        ...

    async def find_matches(self, sequence_hashes: NDArray[np.uint64]) -> dict[WorkerKey, int]:
        """Depth by worker."""
        ...

    async def status(self) -> Status:
        """Its state of every worker."""
        ...


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of a comparison.

    Attributes:
        replicas: number of replicas.
        memberships: (worker, block) pairs that each one holds, compared by digest.
        prompts: number of prompts looked up on each one.
        matched: (worker, block) pairs in their answers.
        differences: one line per difference; empty: they agree.
    """

    replicas: int
    memberships: int
    prompts: int
    matched: int
    differences: tuple[str, ...]

    def sentence(self) -> str:
        """The result as a sentence, for the terminal."""
        if self.differences:
            return (
                f"the {self.replicas} indexers differ in {len(self.differences):,} places; first: "
                + self.differences[0]
            )
        return (
            f"{self.replicas} indexers give the same answers: {self.memberships:,} memberships by "
            f"digest, {self.matched:,} in the answers to {self.prompts:,} prompts"
        )


async def compare(
    replicas: Sequence[ReplicaClient],
    prompts: Sequence[NDArray[np.uint64]],
    *,
    settle_s: float = 10.0,
) -> Agreement:
    """Compare every worker's digests, and the answers to every prompt (its sequence hashes).

    Waits at most `settle_s` until all have applied the same events, since a replica may be a few
    milliseconds behind. After that, what still differs counts.
    """
    statuses = await _settled(replicas, settle_s=settle_s)
    differences = _status_differences(replicas, statuses)
    first = replicas[0].address
    matched = 0
    for number, prompt in enumerate(prompts):
        answers = await asyncio.gather(*(replica.find_matches(prompt) for replica in replicas))
        matched += sum(answers[0].values())
        differences += [
            f"prompt {number}: {first} says {_depths(answers[0])}, {replica.address} {_depths(other)}"
            for replica, other in zip(replicas[1:], answers[1:], strict=True)
            if other != answers[0]
        ]
    return Agreement(
        replicas=len(replicas),
        memberships=statuses[0].memberships,
        prompts=len(prompts),
        matched=matched,
        differences=tuple(differences),
    )


async def _settled(replicas: Sequence[ReplicaClient], *, settle_s: float) -> list[Status]:
    """The replicas' statuses, once two readings are alike everywhere or the time is over."""
    deadline = asyncio.get_running_loop().time() + settle_s
    before: dict[WorkerKey, int] | None = None
    while True:
        statuses = list(await asyncio.gather(*(replica.status() for replica in replicas)))
        applied = [{w: s.last_event_id for w, s in status.workers.items()} for status in statuses]
        alike = all(positions == applied[0] for positions in applied)
        if (alike and applied[0] == before) or asyncio.get_running_loop().time() > deadline:
            return statuses
        before = applied[0]
        await asyncio.sleep(_POLL_S)


def _depths(answer: Mapping[WorkerKey, int]) -> str:
    return ", ".join(f"{depth} blocks on {worker}" for worker, depth in answer.items()) or "nothing"


def _status_differences(replicas: Sequence[ReplicaClient], statuses: Sequence[Status]) -> list[str]:
    first = statuses[0].workers
    return [
        f"worker {worker}: {replicas[0].address} holds {first.get(worker)}, "
        f"{replica.address} {status.workers.get(worker)}"
        for replica, status in zip(replicas[1:], statuses[1:], strict=True)
        for worker in sorted(first.keys() | status.workers.keys())
        if first.get(worker) != status.workers.get(worker)
    ]
