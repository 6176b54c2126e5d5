"""What one side says that a worker holds, and whether two sides say the same. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
TIERS = ("device", "host", "disk", "remote")
EXAMPLES = 3


class Worker(NamedTuple):
    """One engine rank."""

    worker_id: int
    dp_rank: int

    def __str__(self) -> str:
        return f"{self.worker_id}/{self.dp_rank}"


class Digest(NamedTuple):
    """Number of blocks on a tier, and the XOR of their sequence hashes."""

    blocks: int
    xor: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a side says of one worker, as of one event."""

    epoch: int
    event_id: int
    tiers: Mapping[str, Digest]
    """Tiers with blocks on them."""
    lacks: str = ""
    """What the side says itself that is wrong with it; empty: nothing."""

    @property
    def place(self) -> tuple[int, int]:
        """Sets of equal places can be compared."""
        return self.epoch, self.event_id


@dataclass(slots=True)
class Sets:
    """The hashes themselves, per tier, ascending."""

    place: tuple[int, int]
    tiers: Mapping[str, Hashes] = field(default_factory=dict[str, Hashes])

    @property
    def blocks(self) -> int:
        """How many there are."""
        return sum(map(len, self.tiers.values()))


def digest_of(hashes: Hashes) -> Digest:
    """Count and XOR; of nothing: zeros."""
    return Digest(len(hashes), int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0)


def are_comparable(sides: Sequence[Held | None]) -> bool:
    """Whether all sides know the worker, whole, at one and the same event."""
    known = [held for held in sides if held is not None]
    return (
        len(known) == len(sides)
        and len({held.place for held in known}) == 1
        and not any(held.lacks for held in known)
    )


def agree(sides: Sequence[Held | None]) -> bool:
    """Whether comparable sides hold the same."""
    return are_comparable(sides) and all(
        held.tiers == sides[0].tiers for held in sides if held and sides[0]
    )


def differences(worker: Worker, names: Sequence[str], sides: Sequence[Sets]) -> list[str]:
    """One line per tier and side that differs from the first one."""
    lines: list[str] = []
    epoch, event_id = sides[0].place
    nothing = np.empty(0, np.uint64)
    for tier in TIERS:
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
                + _only(names[0], only_ours)
                + _only(name, only_theirs)
            )
    return lines


def standing_still(worker: Worker, names: Sequence[str], sides: Sequence[Held | None]) -> str:
    """Say how sides that no longer move stand apart."""
    told = ", ".join(f"{name} {_standing(held)}" for name, held in zip(names, sides, strict=True))
    return f"worker {worker}: {told}"


def _standing(held: Held | None) -> str:
    if held is None:
        return "does not know it"
    blocks = sum(digest.blocks for digest in held.tiers.values())
    lacks = f", and {held.lacks}" if held.lacks else ""
    return f"is at event {held.event_id} of epoch {held.epoch} with {blocks} blocks{lacks}"


def _only(name: str, hashes: Hashes) -> str:
    if not len(hashes):
        return ""
    shown = ", ".join(f"{int(hash_):016x}" for hash_ in hashes[:EXAMPLES])
    more = ", …" if len(hashes) > EXAMPLES else ""
    return f"; {len(hashes)} only at {name}: {shown}{more}"
