"""What can go wrong with a question, by who can act on it."""

from collections.abc import Sequence

from kvatlas_client.types import CellTerms


class IndexerError(Exception):
    """The base of what the client raises besides ValueError and TypeError for wrong arguments."""


class NoReplicaAnswered(IndexerError):  # noqa: N818 - the name says what happened
    """The deadline is over, or every replica failed: route without an answer."""

    def __init__(self, deadline_s: float, failures: Sequence["CallFailed"]) -> None:
        """`failures`: of each replica that was tried, in order."""
        tried = "; ".join(str(failure) for failure in failures) or "none could be tried"
        super().__init__(f"no replica answered within {deadline_s * 1e3:g} ms: {tried}")
        self.failures = tuple(failures)


class CellMismatch(IndexerError):  # noqa: N818 - the name says what happened
    """A replica serves another model, block size or hash contract: the configuration is wrong."""

    def __init__(self, replica: str, asked: CellTerms, text: str) -> None:
        """`text`: what the replica serves, in words."""
        super().__init__(f"{replica}: {text} (asked for {asked})")
        self.replica = replica
        self.asked = asked


class QueryRejected(IndexerError, ValueError):  # noqa: N818 - the name says what happened
    """A replica calls the question malformed; asking another would not help."""


class CallFailed(IndexerError):  # noqa: N818 - the name says what happened
    """One call to one replica ended with a gRPC status that is not OK."""

    def __init__(self, replica: str, code: int, message: str) -> None:
        """`code`: the number of the gRPC status."""
        super().__init__(f"{replica}: {message} (gRPC status {code})")
        self.replica = replica
        self.code = code
        self.message = message
