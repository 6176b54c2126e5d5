"""Errors of the client, by who can act on them."""

from collections.abc import Sequence

from kvatlas_client.types import CellTerms
from kvatlas_native import FindMatchesError

# Numbers of gRPC statuses, as its specification gives them.
CANCELLED = 1
INVALID_ARGUMENT = 3
FAILED_PRECONDITION = 9
INTERNAL = 13
UNAVAILABLE = 14


class IndexerError(Exception):
    """Base of all errors except ValueError and TypeError for wrong arguments."""


class NoReplicaAnswered(IndexerError):  # noqa: N818 - named for what it is
    """The deadline is over, or every replica failed: route without an answer."""

    def __init__(self, deadline_s: float, failures: Sequence["CallFailed"]) -> None:
        """`failures`: one per replica tried, in order."""
        tried = "; ".join(str(failure) for failure in failures) or "none could be tried"
        super().__init__(f"no replica answered within {deadline_s * 1e3:g} ms: {tried}")
        self.failures = tuple(failures)


class CellMismatch(IndexerError):  # noqa: N818 - named for what it is
    """A replica serves another model, block size or hash contract: the configuration is wrong."""

    def __init__(self, replica: str, asked: CellTerms, text: str) -> None:
        """`text`: the terms that the replica serves, in words."""
        super().__init__(f"{replica}: {text} (asked for {asked})")
        self.replica = replica
        self.asked = asked


class QueryRejected(IndexerError, ValueError):  # noqa: N818 - named for what it is
    """A replica calls the query malformed; another replica would, too."""


class CallFailed(IndexerError):  # noqa: N818 - named for what it is
    """One call to one replica ended with a gRPC status that is not OK."""

    def __init__(self, replica: str, code: int, message: str) -> None:
        """`code`: the number of the gRPC status."""
        super().__init__(f"{replica}: {message} (gRPC status {code})")
        self.replica = replica
        self.code = code
        self.message = message


def raise_if_final(failure: CallFailed, terms: CellTerms) -> None:
    """Raise if the terms or the query are wrong, not the replica; for streams of workers."""
    if failure.code == FAILED_PRECONDITION:
        raise CellMismatch(failure.replica, terms, failure.message) from failure
    if failure.code == INVALID_ARGUMENT:
        raise QueryRejected(str(failure)) from failure


def find_error(error: FindMatchesError, terms: CellTerms, deadline_s: float) -> IndexerError:
    """Return the error that the native finder's one stands for."""
    reason: str
    failures: list[tuple[str, int, str]]
    reason, failures = error.args
    calls = [CallFailed(*failure) for failure in failures]
    if reason == "no_replica":
        return NoReplicaAnswered(deadline_s, calls)
    (call,) = calls
    if reason == "cell_mismatch":
        return CellMismatch(call.replica, terms, call.message)
    return QueryRejected(str(call))
