"""Asks all sides, again and again, until every worker has been compared or cannot be.

Replicas are at the same event only now and then while events flow, so a worker whose sides are
elsewhere is asked for again, a bounded number of times; the others are done with.

Counts and digests first, for they are small. Hashes are fetched where those differ, or of everybody
if all is to be compared: one different set in 2^64 has another's digest by chance, more by intent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvatlas_verify.held import Held, Worker, agree, are_comparable, differences, standing_still
from kvatlas_verify.rpc import CannotTell, Replica
from kvatlas_verify.speakers import Speakers

_STILL_ROUNDS = 3
"""Rounds in which no side moves, after which none is expected to."""
_FETCHED_BLOCKS_MAX = 1 << 22
"""Of so many workers the hashes are fetched at once; one may have more."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often to ask."""

    tries: int
    pause: Callable[[], None]
    """Between two rounds."""


@dataclass(slots=True)
class Findings:
    """What came out."""

    workers: int = 0
    blocks: int = 0
    publishers: int = 0
    """Workers that were compared with their publishers too."""
    differing: dict[Worker, list[str]] = field(default_factory=dict[Worker, list[str]])
    untold: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Open:
    """A worker that is still in question."""

    sides: Sequence[Held | None] = ()
    still: int = 0


def compare(
    replicas: Sequence[Replica], speakers: Speakers, patience: Patience, *, full: bool = False
) -> Findings:
    """Compare every worker on every side; by every hash if `full`.

    Raises:
        CannotTell: a side does not answer.
    """
    asked = [replica.held(None) for replica in replicas]
    speakers.find(replicas, asked)
    comparison = _Comparison(replicas, speakers, asked, full=full)
    for attempt in range(patience.tries):
        if attempt:
            patience.pause()
            asked = [replica.held(comparison.in_question) for replica in replicas]
        comparison.judge(asked)
        if comparison.is_over:
            break
    return comparison.end()


class _Comparison:
    """Of all workers on all sides: what is still in question, and what has been found."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        speakers: Speakers,
        asked: Sequence[Mapping[Worker, Held]],
        *,
        full: bool,
    ) -> None:
        workers = {worker for each in asked for worker in each} | set(speakers.of)
        self.in_question = {worker: _Open() for worker in sorted(workers)}
        self._findings = Findings(len(workers), publishers=len(speakers.of), untold=speakers.idle())
        self._replicas = replicas
        self._speakers = speakers
        self._full = full

    @property
    def is_over(self) -> bool:
        """Nothing is in question that still moves."""
        return all(each.still >= _STILL_ROUNDS for each in self.in_question.values())

    def judge(self, asked: Sequence[Mapping[Worker, Held]]) -> None:
        """Compare whom these counts and digests allow to compare."""
        doubtful: dict[Worker, int] = {}
        for worker, before in list(self.in_question.items()):
            held = [each.get(worker) for each in asked]
            if worker in self._speakers.of:
                held.append(self._speakers.of[worker].held(worker))
            blocks = max(_blocks(each) for each in held)
            if agree(held) and not self._full:
                self._findings.blocks += blocks
                del self.in_question[worker]
                continue
            if are_comparable(held):
                doubtful[worker] = blocks
            stands = before.sides == held and worker not in doubtful
            self.in_question[worker] = _Open(held, before.still + 1 if stands else 0)
        for group in _groups(doubtful):
            self._compare_hashes(group)

    def end(self) -> Findings:
        """What was found, with those that are left."""
        for worker, last in self.in_question.items():
            told = standing_still(worker, self._names(worker), last.sides)
            told += self._speakers.silent.get(worker, "")
            if last.still >= _STILL_ROUNDS:
                self._findings.differing[worker] = [told]
            else:
                self._findings.untold.append(f"{told}: it moves too fast to be compared")
        return self._findings

    def _compare_hashes(self, group: Sequence[Worker]) -> None:
        fetched = [replica.sets(group) for replica in self._replicas]
        for worker in group:
            sides = [each.pop(worker, None) for each in fetched]
            if worker in self._speakers.of:
                sides.append(self._speakers.of[worker].sets(worker))
            known = [each for each in sides if each is not None]
            if len(known) < len(sides) or len({each.place for each in known}) > 1:
                continue  # somebody has moved on: again in the next round
            lines = differences(worker, self._names(worker), known)
            if lines:
                self._findings.differing[worker] = lines
            else:
                self._findings.blocks += known[0].blocks
            del self.in_question[worker]

    def _names(self, worker: Worker) -> list[str]:
        names = [replica.name for replica in self._replicas]
        speaker = self._speakers.of.get(worker)
        return names if speaker is None else [*names, speaker.name]


def _groups(workers: Mapping[Worker, int]) -> Iterator[list[Worker]]:
    """Cut into groups whose blocks can be in memory at once."""
    group: list[Worker] = []
    size = 0
    for worker, blocks in workers.items():
        if group and size + blocks > _FETCHED_BLOCKS_MAX:
            yield group
            group, size = [], 0
        group.append(worker)
        size += blocks
    if group:
        yield group


def _blocks(held: Held | None) -> int:
    return 0 if held is None else sum(digest.blocks for digest in held.tiers.values())


def check_terms(replicas: Sequence[Replica]) -> None:
    """See that all replicas are ready and of one cell.

    Raises:
        CannotTell: they are not.
    """
    first, *others = [(replica.name, replica.terms()) for replica in replicas]
    for name, terms in others:
        if terms != first[1]:
            raise CannotTell(f"{first[0]} is of {first[1]}; {name} of {terms}: not one cell")
