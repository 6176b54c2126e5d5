"""Asks all sides repeatedly until every worker is compared, or the attempts are used up.

While events flow, replicas are at the same event only now and then. So a worker at different
positions is asked for again, a limited number of times.

Counts and digests are compared first, because they are small. Hashes are fetched where those differ,
or of every worker in a full comparison: two different sets have the same digest once in 2^64 by
chance, but an attacker can make such sets easily.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvatlas_verify.publishers import PublisherSides
from kvatlas_verify.rpc import CannotTell, Replica
from kvatlas_verify.worker_state import (
    WorkerSummary,
    agree,
    are_comparable,
    describe,
    differences,
)
from kvatlas_wire import WorkerKey

_SETTLED_ROUNDS = 3
"""Rounds without a change on any side after which a worker counts as settled."""
_FETCHED_BLOCKS_MAX = 1 << 22
"""Blocks whose hashes are fetched at once; a single worker may have more."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Number of rounds, and the pause between two."""

    rounds: int
    pause: Callable[[], None]


@dataclass(slots=True)
class Findings:
    """Result of a comparison."""

    workers: int = 0
    blocks: int = 0
    publishers: int = 0
    """Workers that were also compared with their publishers."""
    differing: dict[WorkerKey, list[str]] = field(default_factory=dict[WorkerKey, list[str]])
    undecided: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _OpenWorker:
    """A worker that is not compared yet."""

    sides: Sequence[WorkerSummary | None] = ()
    settled_rounds: int = 0


def compare(
    replicas: Sequence[Replica], publishers: PublisherSides, retries: Retries, *, full: bool = False
) -> Findings:
    """Compare every worker on every side; hash by hash if `full`.

    Raises:
        CannotTell: a side does not answer.
    """
    summaries = [replica.summaries(None) for replica in replicas]
    publishers.find(replicas, summaries)
    comparison = _Comparison(replicas, publishers, summaries, full=full)
    for attempt in range(retries.rounds):
        if attempt:
            retries.pause()
            summaries = [replica.summaries(comparison.open) for replica in replicas]
        comparison.round(summaries)
        if comparison.is_over:
            break
    return comparison.end()


class _Comparison:
    """The workers that are still open, and the findings so far."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        publishers: PublisherSides,
        summaries: Sequence[Mapping[WorkerKey, WorkerSummary]],
        *,
        full: bool,
    ) -> None:
        workers = {worker for each in summaries for worker in each} | set(publishers.by_worker)
        self.open = {worker: _OpenWorker() for worker in sorted(workers)}
        self._findings = Findings(
            len(workers), publishers=len(publishers.by_worker), undecided=publishers.idle()
        )
        self._replicas = replicas
        self._publishers = publishers
        self._full = full

    @property
    def is_over(self) -> bool:
        """Whether all open workers are settled."""
        return all(each.settled_rounds >= _SETTLED_ROUNDS for each in self.open.values())

    def round(self, summaries: Sequence[Mapping[WorkerKey, WorkerSummary]]) -> None:
        """Compare the workers whose sides are at the same position."""
        to_fetch: dict[WorkerKey, int] = {}
        for worker, before in list(self.open.items()):
            sides = [each.get(worker) for each in summaries]
            if worker in self._publishers.by_worker:
                sides.append(self._publishers.by_worker[worker].summary(worker))
            blocks = max(0 if side is None else side.blocks for side in sides)
            if agree(sides) and not self._full:
                self._findings.blocks += blocks
                del self.open[worker]
                continue
            if are_comparable(sides):
                to_fetch[worker] = blocks
            settled = before.sides == sides and worker not in to_fetch
            self.open[worker] = _OpenWorker(sides, before.settled_rounds + 1 if settled else 0)
        for group in _groups(to_fetch):
            self._compare_hashes(group)

    def end(self) -> Findings:
        """Return the findings, with the workers that are still open."""
        for worker, last in self.open.items():
            text = describe(worker, self._names(worker), last.sides)
            text += self._publishers.not_asked.get(worker, "")
            if last.settled_rounds >= _SETTLED_ROUNDS:
                self._findings.differing[worker] = [text]
            else:
                self._findings.undecided.append(f"{text}: it changes too fast to be compared")
        return self._findings

    def _compare_hashes(self, group: Sequence[WorkerKey]) -> None:
        fetched = [replica.hashes(group) for replica in self._replicas]
        for worker in group:
            sides = [each.pop(worker, None) for each in fetched]
            if worker in self._publishers.by_worker:
                sides.append(self._publishers.by_worker[worker].hashes(worker))
            known = [each for each in sides if each is not None]
            if len(known) < len(sides) or len({each.position for each in known}) > 1:
                continue  # a side has moved on; the next round tries again
            lines = differences(worker, self._names(worker), known)
            if lines:
                self._findings.differing[worker] = lines
            else:
                self._findings.blocks += known[0].blocks
            del self.open[worker]

    def _names(self, worker: WorkerKey) -> list[str]:
        names = [replica.name for replica in self._replicas]
        publisher = self._publishers.by_worker.get(worker)
        return names if publisher is None else [*names, publisher.name]


def _groups(workers: Mapping[WorkerKey, int]) -> Iterator[list[WorkerKey]]:
    """Split workers into groups whose blocks fit into memory at once."""
    group: list[WorkerKey] = []
    size = 0
    for worker, blocks in workers.items():
        if group and size + blocks > _FETCHED_BLOCKS_MAX:
            yield group
            group, size = [], 0
        group.append(worker)
        size += blocks
    if group:
        yield group


def check_terms(replicas: Sequence[Replica]) -> None:
    """Check that all replicas are ready and belong to one cell.

    Raises:
        CannotTell: they do not.
    """
    first, *others = [(replica.name, replica.terms()) for replica in replicas]
    for name, terms in others:
        if terms != first[1]:
            raise CannotTell(f"{first[0]} is of {first[1]}; {name} of {terms}: not one cell")
