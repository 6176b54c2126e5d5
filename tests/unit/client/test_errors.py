"""The native finder's errors become the client's, with every replica's reason."""

import pytest

from kvatlas_client import CallFailed, CellMismatch, CellTerms, NoReplicaAnswered, QueryRejected
from kvatlas_client.errors import FAILED_PRECONDITION, INVALID_ARGUMENT, find_error, raise_if_final
from kvatlas_native import FindMatchesError

TERMS = CellTerms("m", 16, "c")


def test_no_answer_keeps_every_failure() -> None:
    native = FindMatchesError("no_replica", [("r1:1", 14, "not ready"), ("r2:1", 4, "no answer")])
    error = find_error(native, TERMS, 0.05)
    assert isinstance(error, NoReplicaAnswered)
    assert str(error) == (
        "no replica answered within 50 ms: "
        "r1:1: not ready (gRPC status 14); r2:1: no answer (gRPC status 4)"
    )
    assert [(f.replica, f.code, f.message) for f in error.failures] == native.args[1]


def test_no_attempt_is_no_answer() -> None:
    error = find_error(FindMatchesError("no_replica", []), TERMS, 0.05)
    assert str(error) == "no replica answered within 50 ms: none could be tried"


def test_another_cell_names_both_terms() -> None:
    failures = [("r9:1", FAILED_PRECONDITION, "serves x")]
    error = find_error(FindMatchesError("cell_mismatch", failures), TERMS, 0.05)
    assert isinstance(error, CellMismatch)
    assert str(error) == f"r9:1: serves x (asked for {TERMS})"
    assert (error.replica, error.asked) == ("r9:1", TERMS)


def test_a_rejected_query_says_why() -> None:
    failures = [("r9:1", INVALID_ARGUMENT, "too long")]
    error = find_error(FindMatchesError("query_rejected", failures), TERMS, 0.05)
    assert isinstance(error, QueryRejected)
    assert str(error) == "r9:1: too long (gRPC status 3)"


def test_a_stream_ends_for_good_only_if_the_terms_are_wrong() -> None:
    with pytest.raises(CellMismatch, match=r"r9: serves x \(asked for model 'm', block size 16"):
        raise_if_final(CallFailed("r9", FAILED_PRECONDITION, "serves x"), TERMS)
    with pytest.raises(QueryRejected, match="too long"):
        raise_if_final(CallFailed("r9", INVALID_ARGUMENT, "too long"), TERMS)
    for code in set(range(17)) - {FAILED_PRECONDITION, INVALID_ARGUMENT}:
        raise_if_final(CallFailed("r9", code, "why"), TERMS)
