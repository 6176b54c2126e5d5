"""One question's tries: replica after replica, within one deadline. The same for threads and asyncio.

A replica that hangs must not cost the whole deadline: while there is another one to ask, a try gets
half of the time that is left. What a failure means is decided here and nowhere else.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvatlas_client.errors import CallFailed, CellMismatch, NoReplicaAnswered, QueryRejected
from kvatlas_client.health import Replicas
from kvatlas_client.types import CellTerms

# Numbers of gRPC statuses, as its specification gives them.
INVALID_ARGUMENT = 3
FAILED_PRECONDITION = 9

TRY_SHARE = 0.5
# Less is not worth sending: loopback alone takes longer.
TRY_S_MIN = 0.0002


class Try(NamedTuple):
    """Ask this replica, and wait no longer."""

    replica: str
    timeout_s: float


class Tries:
    """Iterate, call, report each outcome; an iteration that ends means that nobody answered."""

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

    def __iter__(self) -> Iterator[Try]:
        order = self._replicas.order(self._begin_s)
        end_s = self._begin_s + self._deadline_s
        for place, replica in enumerate(order):
            left_s = end_s - self._clock()
            if left_s < TRY_S_MIN and place:
                return
            last = place == len(order) - 1
            yield Try(replica, left_s if last else left_s * TRY_SHARE)

    def answered(self, attempt: Try) -> None:
        """The try succeeded."""
        self._replicas.answered(attempt.replica)

    def failed(self, failure: CallFailed) -> None:
        """The try failed; raises where no other replica could do better."""
        raise_if_final(failure, self._terms)
        self._replicas.failed(failure.replica, self._clock(), failure.message)
        self._failures.append(failure)

    def exhausted(self) -> NoReplicaAnswered:
        """The error to raise when the iteration has ended."""
        return NoReplicaAnswered(self._deadline_s, self._failures)


def raise_if_final(failure: CallFailed, terms: CellTerms) -> None:
    """Raise what is wrong with the question itself, not with the replica."""
    if failure.code == FAILED_PRECONDITION:
        raise CellMismatch(failure.replica, terms, failure.message) from failure
    if failure.code == INVALID_ARGUMENT:
        raise QueryRejected(str(failure)) from failure
