"""Who is asked next, with a clock in hand."""

import random

from kvatlas_client.health import BACKOFF_FIRST_S, BACKOFF_MAX_S, Replicas


def replicas(*names: str) -> Replicas:
    return Replicas(names, random.Random(1))


def test_healthy_replicas_take_turns() -> None:
    fleet = replicas("a", "b", "c")
    firsts = [fleet.order(0)[0] for _ in range(6)]
    assert sorted(firsts[:3]) == ["a", "b", "c"]
    assert firsts[3:] == firsts[:3]
    assert sorted(fleet.order(0)) == ["a", "b", "c"]


def test_clients_begin_at_different_replicas() -> None:
    names = ("a", "b", "c", "d")
    firsts = {Replicas(names, random.Random(seed)).order(0)[0] for seed in range(50)}
    assert firsts == set(names)


def test_a_failed_replica_is_last_until_its_backoff_is_over() -> None:
    fleet = replicas("a", "b", "c")
    fleet.failed("b", 10.0, "gone")
    for _ in range(6):
        assert fleet.order(10.0)[-1] == "b"
    later_s = 10.0 + BACKOFF_FIRST_S
    assert "b" in {fleet.order(later_s)[0] for _ in range(3)}


def test_after_a_backoff_one_call_alone_tries_the_replica() -> None:
    fleet = replicas("a", "b")
    fleet.failed("b", 0.0, "gone")
    now_s = BACKOFF_FIRST_S
    assert [fleet.order(now_s)[0] for _ in range(8)].count("b") == 1


def test_an_answer_restores_a_replica() -> None:
    fleet = replicas("a", "b")
    fleet.failed("b", 0.0, "gone")
    fleet.answered("b")
    assert {fleet.order(0.0)[0] for _ in range(2)} == {"a", "b"}
    assert [state.failures for state in fleet.observed()] == [0, 0]
    assert [state.last_error for state in fleet.observed()] == [None, None]


def test_backoffs_grow_to_their_bound_with_every_failed_try() -> None:
    fleet = replicas("a")
    now_s = 0.0
    waits: list[float] = []
    for _ in range(12):
        fleet.order(now_s)
        fleet.failed("a", now_s, "gone")
        waits.append(fleet.wait_s(now_s))
        now_s += waits[-1]
    assert BACKOFF_FIRST_S / 2 <= waits[0] <= BACKOFF_FIRST_S
    assert waits[3] > waits[0]
    assert BACKOFF_MAX_S / 2 <= waits[-1] <= BACKOFF_MAX_S
    assert fleet.observed()[0].failures == 12


def test_calls_that_fail_together_are_one_failure() -> None:
    fleet = replicas("a", "b")
    for _ in range(50):
        fleet.failed("a", 0.0, "gone")
    assert fleet.observed()[0].failures == 1
    assert fleet.wait_s(0.0) == 0.0


def test_all_having_failed_the_one_whose_backoff_ends_first_is_first() -> None:
    fleet = replicas("a", "b")
    fleet.failed("b", 0.0, "gone")
    fleet.failed("a", 0.05, "gone")
    fleet.failed("a", 0.2, "gone again")
    assert fleet.order(0.2)[0] == "b"
    assert sorted(fleet.order(0.2)) == ["a", "b"]
