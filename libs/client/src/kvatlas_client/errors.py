"""Errors of the client, by who can act on them."""

from collections.abc import Sequence

from kvatlas_client.types import CellTerms

# gRPC statuses that the client itself reports, by the numbers of its specification.
CANCELLED = 1
INTERNAL = 13


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
