"""The state of a worker according to one side, and whether several sides agree. No I/O.

A side is a replica or a publisher.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvatlas_wire import Tier, WorkerKey

Hashes = NDArray[np.uint64]
EXAMPLES = 3


class Digest(NamedTuple):
    """Number of blocks on a tier, and the XOR of their sequence hashes."""

    blocks: int
    xor: int


class Position(NamedTuple):
    """The last event in a worker's state. Only states at equal positions can be compared."""

    epoch: int
    event_id: int


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """Counts and digests of one worker at one position."""

    position: Position
    tiers: Mapping[str, Digest]
    """Tiers with blocks."""
    problem: str = ""
    """Why the side calls its own state incomplete; empty: it is complete."""

    @property
    def blocks(self) -> int:
        """Blocks on all tiers."""
        return sum(digest.blocks for digest in self.tiers.values())


@dataclass(slots=True)
class WorkerHashes:
    """All hashes of one worker at one position, by tier, ascending."""

    position: Position
    tiers: Mapping[str, Hashes]

    @property
    def blocks(self) -> int:
        """Blocks on all tiers."""
        return sum(map(len, self.tiers.values()))


def digest_of(hashes: Hashes) -> Digest:
    """Return count and XOR of `hashes`."""
    return Digest(len(hashes), int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0)


def are_comparable(sides: Sequence[WorkerSummary | None]) -> bool:
    """Whether all sides know the worker, completely, at the same position."""
    known = [side for side in sides if side is not None]
    return (
        len(known) == len(sides)
        and len({side.position for side in known}) == 1
        and not any(side.problem for side in known)
    )


def agree(sides: Sequence[WorkerSummary | None]) -> bool:
    """Whether the sides are comparable and equal."""
    return are_comparable(sides) and all(
        side.tiers == sides[0].tiers for side in sides if side and sides[0]
    )


def differences(
    worker: WorkerKey, names: Sequence[str], sides: Sequence[WorkerHashes]
) -> list[str]:
    """Return a line per tier and side that differs from the first side."""
    lines: list[str] = []
    epoch, event_id = sides[0].position
    nothing = np.empty(0, np.uint64)
    for tier in Tier:
        ours = sides[0].tiers.get(tier, nothing)
        for name, side in zip(names[1:], sides[1:], strict=True):
            theirs = side.tiers.get(tier, nothing)
            only_ours = np.setdiff1d(ours, theirs, assume_unique=True)
            only_theirs = np.setdiff1d(theirs, ours, assume_unique=True)
            if not len(only_ours) and not len(only_theirs):
                continue
            lines.append(
                f"worker {worker} {tier}, event {event_id} of epoch {epoch}: "
                f"{names[0]} has {len(ours)} blocks, {name} has {len(theirs)}"
                + _only_at(names[0], only_ours)
                + _only_at(name, only_theirs)
            )
    return lines


def describe(worker: WorkerKey, names: Sequence[str], sides: Sequence[WorkerSummary | None]) -> str:
    """Return a line with the position of every side."""
    texts = (f"{name} {_describe(side)}" for name, side in zip(names, sides, strict=True))
    return f"worker {worker}: {', '.join(texts)}"


def _describe(side: WorkerSummary | None) -> str:
    if side is None:
        return "does not know it"
    epoch, event_id = side.position
    problem = f", and {side.problem}" if side.problem else ""
    return f"is at event {event_id} of epoch {epoch} with {side.blocks} blocks{problem}"


def _only_at(name: str, hashes: Hashes) -> str:
    if not len(hashes):
        return ""
    shown = ", ".join(f"{int(hash_):016x}" for hash_ in hashes[:EXAMPLES])
    more = ", …" if len(hashes) > EXAMPLES else ""
    return f"; {len(hashes)} only at {name}: {shown}{more}"
