"""Who speaks for a worker: what the publishers that share a log tell one another.

A log takes records of every epoch, and whoever reads it drops those of an older one: their
publisher would never hear of it. So beside its records a log keeps *claims*, of each worker the
epoch and the publisher that speaks in it. A publisher tells its own again and again; it learns by
that of another one's that is newer, and ends.

Claims are beside the events, not among them: nothing waits for one, and one that is lost is told
again. Who stops telling is forgotten after an hour.
"""

import re
import time
from dataclasses import dataclass
from typing import Protocol

from kvatlas_events.log import Fenced
from kvatlas_events.model import Header, Worker

FORGOTTEN_S = 3_600
"""After so long without being told again, a claim may be gone."""

_EPOCH_AHEAD_US_MAX = 600_000_000
"""Indexers reject what is further ahead of their clock, so nobody is heard in such an epoch."""
_TEXT = re.compile(rb"(\d{1,20})/(\d{1,10}) (\d{1,20}) ([0-9a-f]{16}) (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Claim:
    """One publisher speaks for one worker, in one epoch."""

    worker: Worker
    epoch: int
    instance_id: int
    publisher: str
    """Its name, for people."""

    @classmethod
    def of(cls, header: Header) -> "Claim":
        """Return the claim of whoever says records under `header`."""
        return cls(header.worker, header.epoch, header.instance_id, header.publisher)

    def encode(self) -> bytes:
        """Return it as logs keep it: one line that people can read, too."""
        worker = f"{self.worker.worker_id}/{self.worker.dp_rank}"
        return f"{worker} {self.epoch} {self.instance_id:016x} {self.publisher}".encode()

    def yields_to(self, other: "Claim") -> bool:
        """Whether `other` is another publisher's, and not of an older epoch.

        Of equal epochs both yield: of the two, indexers hear only the one that came first, and who
        starts again is in a later epoch.
        """
        return other.instance_id != self.instance_id and other.epoch >= self.epoch

    def fenced_by(self, other: "Claim", name: str) -> Fenced:
        """Return that `other` speaks for the worker now, as the log `name` tells."""
        return Fenced(name, self.worker, self.epoch, other.epoch, rival=other.publisher)


class ClaimRegister(Protocol):
    """A log's claims. Several tasks may use it at once, for workers of their own."""

    @property
    def name(self) -> str:
        """Transport and address without credentials, for logs and metrics."""
        ...

    async def claimed(self, worker: Worker) -> Claim | None:
        """Return the newest claim of `worker` that the log knows of.

        Raises:
            LogUnavailable: the log does not answer.
        """
        ...

    async def claim(self, claim: Claim) -> Claim | None:
        """Tell `claim`, and return the one that it yields to, if there is one.

        To be told again every few seconds: of two that are told in turn, the older one's next
        telling finds the newer one.

        Raises:
            LogUnavailable: it may not be known to the log.
        """
        ...

    async def close(self) -> None:
        """Let go of connections; what was told stays."""
        ...


def decode_claim(text: bytes, worker: Worker | None = None) -> Claim | None:
    """Return the claim; None: these bytes are none, or not of `worker`, or of no epoch to be.

    An epoch that indexers would reject for being too far ahead fences nobody.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    worker_id, dp_rank, epoch, instance_id, publisher = found.groups()
    claim = Claim(
        Worker(int(worker_id), int(dp_rank)),
        int(epoch),
        int(instance_id, 16),
        publisher.decode(errors="replace"),
    )
    if worker not in {None, claim.worker}:
        return None
    ahead_us = claim.epoch - time.time_ns() // 1_000
    return None if ahead_us > _EPOCH_AHEAD_US_MAX else claim
