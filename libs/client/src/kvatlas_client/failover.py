"""Attempts of one query: replica after replica, within one deadline; for threads and asyncio alike.

A replica that hangs must not use up the deadline. While there is another replica to ask, an attempt
gets half of the time that is left. Only this module decides what a failure means.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvatlas_client.errors import CallFailed, CellMismatch, NoReplicaAnswered, QueryRejected
from kvatlas_client.health import Replicas
from kvatlas_client.types import CellTerms

# Numbers of gRPC statuses, as its specification gives them.
INVALID_ARGUMENT = 3
FAILED_PRECONDITION = 9

ATTEMPT_SHARE = 0.5
# A shorter attempt is not sent: even loopback takes longer.
ATTEMPT_S_MIN = 0.0002


class Attempt(NamedTuple):
    """A call to one replica, with its time limit."""

    replica: str
    timeout_s: float


class Attempts:
    """Iterate, call, and report each outcome. If the iteration ends, no replica answered."""

    def __init__(
        self, replicas: Replicas, terms: CellTerms, deadline_s: float, clock: Callable[[], float]
    ) -> None:
        """The deadline runs from now on."""
        self._replicas = replicas
        self._terms = terms
        self._deadline_s = deadline_s
        self._clock = clock
        self._begin_s = clock()
        self._failures: list[CallFailed] = []

    def __iter__(self) -> Iterator[Attempt]:
        order = self._replicas.order(self._begin_s)
        end_s = self._begin_s + self._deadline_s
        for i, replica in enumerate(order):
            left_s = end_s - self._clock()
            if left_s < ATTEMPT_S_MIN and i:
                return
            is_last = i == len(order) - 1
            yield Attempt(replica, left_s if is_last else left_s * ATTEMPT_SHARE)

    def answered(self, attempt: Attempt) -> None:
        """Report that the attempt succeeded."""
        self._replicas.answered(attempt.replica)

    def failed(self, failure: CallFailed) -> None:
        """Report that the attempt failed; raises if no other replica could do better."""
        raise_if_final(failure, self._terms)
        self._replicas.failed(failure.replica, self._clock(), failure.message)
        self._failures.append(failure)

    def exhausted(self) -> NoReplicaAnswered:
        """Return the error to raise after the iteration has ended."""
        return NoReplicaAnswered(self._deadline_s, self._failures)


def raise_if_final(failure: CallFailed, terms: CellTerms) -> None:
    """Raise if the query itself is wrong, not the replica."""
    if failure.code == FAILED_PRECONDITION:
        raise CellMismatch(failure.replica, terms, failure.message) from failure
    if failure.code == INVALID_ARGUMENT:
        raise QueryRejected(str(failure)) from failure
