"""Asks all sides, again and again, until every worker has been compared or cannot be.

Replicas are at the same event only now and then while events flow, so a worker whose sides are
elsewhere is asked for again, a bounded number of times; the others are done with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvatlas_verify.held import Held, Worker, agree, are_comparable, differences, standing_still
from kvatlas_verify.rpc import CannotTell, Publisher, Replica

_STILL_ROUNDS = 3
"""Rounds in which no side moves, after which none is expected to."""


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


Side = Replica | Publisher


def compare(
    replicas: Sequence[Replica], publishers: Sequence[Publisher], patience: Patience
) -> Findings:
    """Compare every worker on every side.

    Raises:
        CannotTell: a side does not answer.
    """
    findings = Findings()
    asked = [replica.held(None) for replica in replicas]
    workers = sorted({worker for each in asked for worker in each})
    findings.workers = len(workers)
    speakers = _speakers(replicas, publishers, workers, findings)
    findings.publishers = len(speakers)
    in_question = {worker: _Open() for worker in workers}
    for attempt in range(patience.tries):
        if attempt:
            patience.pause()
            asked = [replica.held(in_question) for replica in replicas]
        for worker in list(in_question):
            sides: list[Side] = [*replicas]
            held = [each.get(worker) for each in asked]
            if worker in speakers:
                sides.append(speakers[worker])
                held.append(speakers[worker].held(worker))
            if _is_settled(worker, sides, held, findings):
                del in_question[worker]
                continue
            before = in_question[worker]
            still = before.still + 1 if before.sides == held else 0
            in_question[worker] = _Open(held, still)
        if all(each.still >= _STILL_ROUNDS for each in in_question.values()):
            break
    for worker, last in in_question.items():
        names = [
            each.name for each in [*replicas, *([speakers[worker]] if worker in speakers else [])]
        ]
        told = standing_still(worker, names, last.sides)
        if last.still >= _STILL_ROUNDS:
            findings.differing[worker] = [told]
        else:
            findings.untold.append(f"{told}: it moves too fast to be compared")
    return findings


def _is_settled(
    worker: Worker, sides: Sequence[Side], held: Sequence[Held | None], findings: Findings
) -> bool:
    """Whether the worker has been compared; what was found is noted."""
    if agree(held):
        first = held[0]
        findings.blocks += sum(d.blocks for d in first.tiers.values()) if first else 0
        return True
    if not are_comparable(held):
        return False
    sets = [side.sets(worker) for side in sides]
    known = [each for each in sets if each is not None]
    if len(known) < len(sets) or len({each.place for each in known}) > 1:
        return False
    lines = differences(worker, [side.name for side in sides], known)
    if lines:
        findings.differing[worker] = lines
    return bool(lines)


def _speakers(
    replicas: Sequence[Replica],
    publishers: Sequence[Publisher],
    workers: Sequence[Worker],
    findings: Findings,
) -> Mapping[Worker, Publisher]:
    """Which of the named publishers speaks for which worker."""
    named = {
        worker: address for replica in replicas for worker, address in replica.publishers.items()
    }
    speakers: dict[Worker, Publisher] = {}
    for publisher in publishers:
        theirs = [worker for worker in workers if named.get(worker) == publisher.name]
        served = theirs or [worker for worker in workers if publisher.held(worker) is not None]
        if not served:
            findings.untold.append(f"{publisher.name} speaks for no worker that a replica knows")
        speakers.update(dict.fromkeys(served, publisher))
    return speakers


def check_terms(replicas: Sequence[Replica]) -> None:
    """See that all replicas are ready and of one cell.

    Raises:
        CannotTell: they are not.
    """
    first, *others = [(replica.name, replica.terms()) for replica in replicas]
    for name, terms in others:
        if terms != first[1]:
            raise CannotTell(f"{first[0]} is of {first[1]}, {name} of {terms}: not one cell")
