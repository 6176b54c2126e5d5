"""The state machine of a circuit breaker, under any order of events."""

from hypothesis import given
from hypothesis import strategies as st

from kvatlas_frontend.fleet.circuit_breaker import BreakerLimits, CircuitBreaker

LIMITS = BreakerLimits(failures=3, first_s=2.0, max_s=30.0, trial_s=5.0)


def test_it_opens_after_failures_in_a_row_for_a_time_that_doubles() -> None:
    breaker = CircuitBreaker(LIMITS)
    pauses: list[float] = []
    for _ in range(9):
        breaker.failed(100.0)
        pauses.append(max(0.0, breaker.open_until_s - 100.0))
    assert pauses == [0, 0, 2, 4, 8, 16, 30, 30, 30]
    breaker.succeeded()
    assert not breaker.is_open(100.0)
    breaker.trip(100.0)
    assert breaker.open_until_s == 102.0


@given(st.lists(st.tuples(st.sampled_from(["failed", "succeeded", "sent"]), st.floats(0, 50))))
def test_a_half_open_breaker_lets_one_through_and_a_closed_one_all(
    events: list[tuple[str, float]],
) -> None:
    breaker, now_s, in_a_row = CircuitBreaker(LIMITS), 1000.0, 0
    for event, pause_s in events:
        now_s += pause_s
        if event == "failed":
            in_a_row += 1
            breaker.failed(now_s)
            assert breaker.is_open(now_s) == (in_a_row >= LIMITS.failures)
        elif event == "succeeded":
            in_a_row = 0
            breaker.succeeded()
            assert not breaker.is_open(now_s)
        else:
            breaker.sent(now_s)
            assert breaker.is_open(now_s) == (in_a_row >= LIMITS.failures)
        assert breaker.open_until_s <= now_s + LIMITS.max_s
