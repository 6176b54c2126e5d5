"""How often events of the same kind are logged."""

from kvatlas_chassis import LogRateLimiter


def test_the_first_event_of_a_kind_is_allowed_and_then_one_an_interval() -> None:
    now_s = 100.0
    limiter = LogRateLimiter(10.0, monotonic_s=lambda: now_s)
    assert [limiter.allows(kind) for kind in "aabab"] == [True, False, True, False, False]
    now_s += 10.0
    assert [limiter.allows(kind) for kind in "aba"] == [True, True, False]


def test_kinds_from_outside_are_not_remembered_without_bound() -> None:
    limiter = LogRateLimiter(10.0, monotonic_s=lambda: 0.0)
    assert all(limiter.allows(str(kind)) for kind in range(1_000))
    assert len(vars(limiter)["_last_logged_s"]) <= 64
