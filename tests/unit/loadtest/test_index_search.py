"""The search for the shortest window that counts: it ends, and what it finds is right."""

import itertools
import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from kvatlas_loadtest.bench.index.search import Rules, TriedWindow, next_window, shortest_window

RULES = Rules(windows_max=40)


def searched(guess_ms: float, rules: Rules, counts: Callable[[int], bool]) -> list[TriedWindow]:
    tried: list[TriedWindow] = []
    while (window_ms := next_window(guess_ms, tried, rules)) is not None:
        tried.append(TriedWindow(window_ms, counts(window_ms)))
        assert len(tried) <= rules.windows_max * rules.trials
    return tried


@given(st.integers(1, 100_000), st.floats(0.02, 50))
def test_it_finds_the_bound_to_its_precision(bound_ms: int, error: float) -> None:
    tried = searched(bound_ms * error, RULES, lambda window_ms: window_ms >= bound_ms)
    found_ms = shortest_window(tried, RULES)
    assert found_ms is not None
    # A millisecond is the finest step there is.
    assert bound_ms <= found_ms <= max(bound_ms * RULES.precision, bound_ms + 1)


@given(st.integers(200, 20_000), st.floats(0.9, 1.1))
def test_a_good_guess_takes_few_windows(bound_ms: int, error: float) -> None:
    tried = searched(bound_ms * error, RULES, lambda window_ms: window_ms >= bound_ms)
    assert len({trial.window_ms for trial in tried}) <= Rules().windows_max


@given(st.floats(0.5, 5_000), st.integers(1, 5), st.randoms(use_true_random=False))
def test_whatever_happens_it_ends_and_most_trials_of_what_it_found_counted(
    guess_ms: float, trials: int, chance: random.Random
) -> None:
    rules = Rules(trials=trials)
    tried = searched(guess_ms, rules, lambda _: chance.random() < 0.5)
    found_ms = shortest_window(tried, rules)
    won = {
        window_ms
        for window_ms, group in itertools.groupby(
            sorted(tried, key=lambda trial: trial.window_ms), key=lambda trial: trial.window_ms
        )
        if sum(trial.counted for trial in group) > trials // 2
    }
    assert found_ms == min(won, default=None)


@given(st.integers(1, 10_000), st.permutations([True, True, False]))
def test_one_trial_of_three_decides_nothing(guess_ms: int, outcomes: list[bool]) -> None:
    one = [TriedWindow(guess_ms, outcomes[0])]
    assert next_window(guess_ms, one, Rules()) == guess_ms
    assert shortest_window(one, Rules()) is None
    three = [TriedWindow(guess_ms, counted) for counted in outcomes]
    assert shortest_window(three, Rules()) == guess_ms


def test_two_of_three_alike_spare_the_third() -> None:
    for counted in (True, False):
        two = [TriedWindow(100, counted)] * 2
        assert next_window(100, two, Rules()) != 100


def test_a_design_that_never_keeps_up_has_no_window() -> None:
    tried = searched(100, Rules(), lambda _: False)
    assert shortest_window(tried, Rules()) is None
    assert len({trial.window_ms for trial in tried}) == Rules().windows_max
