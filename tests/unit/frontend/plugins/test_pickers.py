"""Pickers: whom they choose for costs that are told, and whom next if that one failed."""

from collections import Counter
from math import e
from typing import Any

import pytest

from kvatlas_client import Load, WorkerKey
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.routing.recollection import LastWorkers
from kvatlas_frontend.routing.trial import Trial, worker

DRAWS = 4000


def trial(pick: Any, workers: int, *, score: Any = None, prepare: tuple[str, ...] = ()) -> Trial:  # noqa: ANN401 - any entry
    document = {
        "name": "p",
        "prepare": ["session", *prepare],
        "filter": ["available"],
        "score": score or [{"load": {"per_token": 1}}],
        "pick": pick,
    }
    return Trial(document, workers)


async def drawn(made: Trial) -> Counter[int | None]:
    return Counter([await made.route() for _ in range(DRAWS)])


async def test_lowest_cost_and_its_ties() -> None:
    made = trial("lowest-cost", 3)
    made.begin(0, tokens=10)
    made.begin(1, tokens=5)
    made.begin(2, tokens=5)
    made.begin(2, tokens=0)
    assert await made.route() == 1
    assert made.retry({1}) == 2
    assert made.retry({1, 2}) == 0
    assert made.retry({0, 1, 2}) is None


async def test_highest_score_takes_the_largest_share() -> None:
    made = trial("highest-score", 3, score=["least-load"])
    made.begin(0, tokens=10)
    made.begin(1, tokens=5)
    assert await made.route() == 2
    assert made.plan is not None
    assert made.plan.reason is Reason.HIGHEST_SCORE
    assert made.retry({2}) == 1


async def test_weighted_random_draws_by_a_softmax_of_the_normalized_costs() -> None:
    """Costs 0, 50 and 100 at temperature 1: chances as 1 : e^-0.5 : e^-1."""
    made = trial("weighted-random", 3)
    made.begin(1, tokens=50)
    made.begin(2, tokens=100)
    counts = await drawn(made)
    total = 1 + e**-0.5 + e**-1
    for number, weight in enumerate((1.0, e**-0.5, e**-1)):
        assert counts[number] == pytest.approx(DRAWS * weight / total, abs=120)


async def test_weighted_random_at_temperature_0_takes_the_best_and_draws_among_equals_else() -> (
    None
):
    made = trial({"weighted-random": {"temperature": 0}}, 2)
    made.begin(0, tokens=1)
    assert await drawn(made) == {1: DRAWS}
    counts = await drawn(trial("weighted-random", 4))
    assert set(counts) == {0, 1, 2, 3}
    assert all(count == pytest.approx(DRAWS / 4, abs=120) for count in counts.values())


async def test_equal_seeds_draw_alike() -> None:
    runs = [
        [await made.route() for _ in range(50)]
        for made in (trial("weighted-random", 5) for _ in "ab")
    ]
    assert runs[0] == runs[1]


async def test_the_worst_is_never_the_better_of_two() -> None:
    """There are three pairs: the cheapest wins two, the second one."""
    made = trial("power-of-two", 3)
    made.begin(1, tokens=5)
    made.begin(2, tokens=10)
    counts = await drawn(made)
    assert set(counts) == {0, 1}
    assert counts[0] == pytest.approx(DRAWS * 2 / 3, abs=120)


async def test_of_two_that_cost_the_same_the_one_with_fewer_requests_is_taken() -> None:
    made = trial("power-of-two", 2)
    made.begin(0, tokens=0)
    assert await drawn(made) == {1: DRAWS}
    made.fleet.columns.unreachable_until_s[made.row(1)] = 1.0
    assert await made.route() == 0


async def test_a_session_stays_within_its_margin() -> None:
    made = trial({"session": {"margin": 100}}, 2)
    home = await made.route(headers={"session-id": "s"})
    assert home is not None
    made.begin(home, tokens=100)
    assert await made.route(headers={"session-id": "s"}) == home
    assert made.plan is not None
    assert made.plan.reason is Reason.SESSION
    assert await made.route() == 1 - home  # no session: the cheapest
    made.begin(home, tokens=1)
    assert await made.route(headers={"session-id": "s"}) == 1 - home
    made.begin(1 - home, tokens=150)
    assert await made.route(headers={"session-id": "s"}) == 1 - home  # it has moved


async def test_a_session_leaves_a_worker_that_failed_and_stays_away() -> None:
    made = trial({"session": {"margin": 1e9}}, 3)
    home = await made.route(headers={"session-id": "s"})
    assert home is not None
    second = made.retry({home})
    assert second != home
    assert await made.route(headers={"session-id": "s"}) == second


async def test_a_session_is_forgotten_in_time() -> None:
    made = trial({"session": {"margin": 1e9, "ttl_s": 10}}, 2)
    home = await made.route(headers={"session-id": "s"})
    assert home is not None
    made.begin(home, tokens=1)
    made.now_s = 9.0
    assert await made.route(headers={"session-id": "s"}) == home  # the time begins again
    made.now_s = 18.0
    assert await made.route(headers={"session-id": "s"}) == home
    made.now_s = 28.0
    assert await made.route(headers={"session-id": "s"}) == 1 - home


def test_a_memory_of_sessions_is_bounded() -> None:
    memory = LastWorkers(keys_max=100, ttl_s=10.0)
    for number in range(1000):
        memory.put(f"s{number}", WorkerKey(number, 0), now_s=0.0)
    assert len(memory) == 100
    assert memory.get("s999", 0.0) == WorkerKey(999, 0)
    assert memory.get("s899", 0.0) is None
    for number in range(100):
        memory.put(f"t{number}", WorkerKey(number, 0), now_s=20.0)
    assert len(memory) == 100
    assert memory.get("s999", 20.0) is None


def hashed(workers: int, load_factor: float = 1.25) -> Trial:
    document = {
        "name": "p",
        "prepare": ["session", "hash-key"],
        "filter": ["available"],
        "pick": {"consistent-hash": {"load_factor": load_factor}},
    }
    return Trial(document, workers)


async def homes(made: Trial) -> list[int | None]:
    return [await made.route(user=f"user {number}") for number in range(800)]


async def test_frontends_agree_on_a_keys_worker_and_keys_spread() -> None:
    first, second = await homes(hashed(8)), await homes(hashed(8))
    assert first == second
    counts = Counter(first)
    assert set(counts) == set(range(8))
    assert all(count == pytest.approx(100, abs=40) for count in counts.values())


async def test_a_worker_that_leaves_moves_only_its_own_keys() -> None:
    made = hashed(8)
    before = await homes(made)
    made.tell(*(worker(number) for number in range(7)))
    after = await homes(made)
    moved = {
        number for number, (was, now) in enumerate(zip(before, after, strict=True)) if was != now
    }
    assert moved == {number for number, was in enumerate(before) if was == 7}


async def test_no_worker_takes_more_than_its_bound_of_one_key() -> None:
    """40 requests of one key on 4 workers: at most ceil(1.25 * 40 / 4) = 13 stay on one."""
    made = hashed(4)
    counts = Counter([await made.route(user="u", keep=True) for _ in range(40)])
    assert max(counts.values()) == 13
    assert sum(counts.values()) == 40


async def test_a_full_worker_passes_its_key_to_the_next_and_so_does_a_retry() -> None:
    """Bound ceil(1.25 * 9 / 2) = 6: eight requests elsewhere are above it."""
    made = hashed(2)
    home = await made.route(user="u")
    assert home is not None
    assert made.retry({home}) == 1 - home
    made.tell(worker(home, load=Load(8, 0, 0.0)), worker(1 - home))
    assert await made.route(user="u") == 1 - home
    made.tell(worker(home, load=Load(1, 0, 0.0)), worker(1 - home))
    assert await made.route(user="u") == home


async def test_a_request_without_a_key_goes_to_the_idlest() -> None:
    made = hashed(2)
    made.begin(0)
    assert await made.route() == 1
