"""Claims: which publisher speaks for a worker, kept in the log beside its records.

A log takes records of every epoch, and readers drop those of an older epoch. The publisher of the
older epoch would never learn of that. So each publisher writes a *claim* for each of its workers
every few seconds: the worker, the epoch and the publisher. From the same call it learns of a newer
claim of another publisher, and exits.

Nothing of the events waits for a claim, and a lost claim is written again. A claim that is no longer
renewed expires after an hour.
"""

import re
import time
from dataclasses import dataclass
from typing import Protocol

from kvatlas_events.log import Fenced
from kvatlas_events.model import Header
from kvatlas_wire import WorkerKey

CLAIM_TTL_S = 3_600
"""Time after which a claim that is not renewed may be gone, in seconds."""

_EPOCH_AHEAD_US_MAX = 600_000_000
"""Indexers reject an epoch that is further ahead of their clock, in microseconds."""
_TEXT = re.compile(rb"(\d{1,20})/(\d{1,10}) (\d{1,20}) ([0-9a-f]{16}) (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Claim:
    """One publisher speaks for one worker in one epoch."""

    worker: WorkerKey
    epoch: int
    instance_id: int
    publisher: str
    """Name of the publisher, for people."""

    @classmethod
    def of(cls, header: Header) -> "Claim":
        """Return the claim of the publisher that writes records with `header`."""
        return cls(header.worker, header.epoch, header.instance_id, header.publisher)

    def encode(self) -> bytes:
        """Return the claim as logs keep it: one readable line."""
        return f"{self.worker} {self.epoch} {self.instance_id:016x} {self.publisher}".encode()

    def yields_to(self, other: "Claim") -> bool:
        """Whether `other` is another publisher's, and its epoch is not older.

        At equal epochs both yield: indexers follow only the first of the two, and a restart opens
        a later epoch.
        """
        return other.instance_id != self.instance_id and other.epoch >= self.epoch

    def fenced_by(self, other: "Claim", name: str) -> Fenced:
        """Return the error that `other` speaks for the worker now, according to the log `name`."""
        return Fenced(name, self.worker, self.epoch, other.epoch, rival=other.publisher)


class ClaimRegister(Protocol):
    """A log's claims. Several tasks may use it at once, each for its own workers."""

    @property
    def name(self) -> str:
        """Transport and address without credentials, for logs and metrics."""
        ...

    async def claimed(self, worker: WorkerKey) -> Claim | None:
        """Return the newest claim of `worker` in the log.

        Raises:
            LogUnavailable: the log does not answer.
        """
        ...

    async def claim(self, claim: Claim) -> Claim | None:
        """Write `claim`; return the claim that it yields to, if there is one.

        Call it again every few seconds: when two publishers write in turn, the older one's next
        call returns the newer one's claim.

        Raises:
            LogUnavailable: the claim may not have been written.
        """
        ...

    async def close(self) -> None:
        """Close connections; claims stay in the log."""
        ...


def decode_claim(text: bytes, worker: WorkerKey | None = None) -> Claim | None:
    """Return the claim; None: malformed, of another worker than `worker`, or too far ahead.

    Indexers reject an epoch too far ahead of their clock, so such a claim fences nobody.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    worker_id, dp_rank, epoch, instance_id, publisher = found.groups()
    claim = Claim(
        WorkerKey(int(worker_id), int(dp_rank)),
        int(epoch),
        int(instance_id, 16),
        publisher.decode(errors="replace"),
    )
    if worker not in {None, claim.worker}:
        return None
    ahead_us = claim.epoch - time.time_ns() // 1_000
    return None if ahead_us > _EPOCH_AHEAD_US_MAX else claim
