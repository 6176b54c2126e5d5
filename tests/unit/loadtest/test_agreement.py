"""Replicas that agree, and every way in which they can differ."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvatlas_loadtest.demo.agreement import compare
from kvatlas_loadtest.indexer_rpc import Status, WorkerStatus
from kvatlas_wire import WorkerKey

WORKER = WorkerStatus("LIVE", 5, 7, 3, "http://e", ((1, 3, 99),))
PROMPTS = [np.array([1, 2], dtype=np.uint64), np.array([9], dtype=np.uint64)]


@dataclass
class Replica:
    address: str
    answers: dict[int, dict[WorkerKey, int]]
    workers: dict[WorkerKey, WorkerStatus]
    asked: int = 0
    behind: int = 0

    async def find_matches(self, sequence_hashes: NDArray[np.uint64]) -> dict[WorkerKey, int]:
        return self.answers.get(int(sequence_hashes[0]), {})

    async def status(self) -> Status:
        self.asked += 1
        late = self.asked <= self.behind
        workers = {w: replace(s, last_event_id=1) if late else s for w, s in self.workers.items()}
        return Status(ready=True, workers=workers, memberships=3)


def pair() -> tuple[Replica, Replica]:
    answers = {1: {WorkerKey(0, 0): 2, WorkerKey(1, 0): 1}}
    return (
        Replica("a:1", dict(answers), {WorkerKey(0, 0): WORKER}),
        Replica("b:1", dict(answers), {WorkerKey(0, 0): WORKER}),
    )


async def test_equal_replicas_agree_and_say_over_how_much() -> None:
    found = await compare(pair(), PROMPTS)
    assert found.differences == ()
    assert (found.memberships, found.matched, found.prompts) == (3, 3, 2)
    assert found.sentence().startswith("2 indexers give the same answers: 3 memberships by digest")


async def test_a_replica_that_is_a_little_behind_is_waited_for() -> None:
    first, second = pair()
    second.behind = 2
    assert (await compare((first, second), PROMPTS)).differences == ()


async def test_a_replica_that_stays_behind_differs() -> None:
    first, second = pair()
    second.workers[WorkerKey(0)] = replace(WORKER, last_event_id=6)
    found = await compare((first, second), PROMPTS, settle_s=0.0)
    assert len(found.differences) == 1
    assert found.differences[0].startswith("worker 0/0: a:1 holds")


async def test_other_digests_other_answers_and_missing_workers_are_differences() -> None:
    first, second = pair()
    second.workers[WorkerKey(0)] = replace(WORKER, digests=((1, 3, 98),))
    second.workers[WorkerKey(4)] = WORKER
    second.answers[1] = {WorkerKey(0, 0): 1, WorkerKey(1, 0): 1}
    found = await compare((first, second), PROMPTS, settle_s=0.0)
    assert len(found.differences) == 3
    assert (
        "prompt 0: a:1 says 2 blocks on 0/0, 1 blocks on 1/0, b:1 1 blocks on 0/0"
        in found.differences[2]
    )
    assert found.sentence().startswith("the 2 indexers differ in 3 places; first: worker 0/0")
