"""What is said of many like events."""

from kvatlas_chassis import Seldom


def test_each_kind_is_due_at_first_and_then_once_in_a_while() -> None:
    now_s = 100.0
    seldom = Seldom(10.0, monotonic_s=lambda: now_s)
    assert [seldom.is_due(kind) for kind in "aabab"] == [True, False, True, False, False]
    now_s += 10.0
    assert [seldom.is_due(kind) for kind in "aba"] == [True, True, False]


def test_kinds_from_outside_are_not_remembered_without_bound() -> None:
    seldom = Seldom(10.0, monotonic_s=lambda: 0.0)
    assert all(seldom.is_due(str(kind)) for kind in range(1_000))
    assert len(vars(seldom)["_said_s"]) <= 64
