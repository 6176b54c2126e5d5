"""Filters: which workers they leave, on fleets small enough to check by hand."""

from typing import Any

import pytest

from kvatlas_client import Load
from kvatlas_frontend.fleet.circuit_breaker import Trouble
from kvatlas_frontend.routing.trial import Trial, worker


async def left(trial: Trial, workers: int) -> set[int]:
    """The workers that rotation reaches."""
    return {number for _ in range(workers) if (number := await trial.route(100)) is not None}


def profile(*filters: Any, matches: bool = False) -> dict[str, Any]:  # noqa: ANN401 - any entry
    prepare = ["tokens", "chunk-hashes", "matches"] if matches else []
    return {"name": "p", "prepare": prepare, "filter": list(filters), "pick": "round-robin"}


@pytest.mark.parametrize(
    ("roles", "expected"), [(["prefill"], {0}), (["decode", ""], {1, 2}), (["other"], set[int]())]
)
async def test_role_keeps_workers_of_its_roles(roles: list[str], expected: set[int]) -> None:
    workers = [worker(0, role="prefill"), worker(1, role="decode"), worker(2)]
    assert await left(Trial(profile({"role": {"roles": roles}}), workers), 3) == expected


async def test_label_keeps_workers_with_one_of_the_values() -> None:
    workers = [worker(n, labels={"gpu": gpu}) for n, gpu in enumerate(["h100", "a100", "l4"])]
    document = profile({"label": {"name": "gpu", "values": ["h100", "l4"]}})
    assert await left(Trial(document, [*workers, worker(3)]), 4) == {0, 2}


@pytest.mark.parametrize(("strict", "when_full"), [(False, {0, 1}), (True, set[int]())])
async def test_a_cap_counts_the_requests_of_all_frontends(
    strict: bool, when_full: set[int]
) -> None:
    """Worker 1 reports one request of another frontend."""
    document = profile({"concurrency-cap": {"requests": 2, "strict": strict}})
    trial = Trial(document, [worker(0), worker(1, load=Load(1, 0, 0.0))])
    assert await left(trial, 2) == {0, 1}
    trial.begin(1)
    assert await left(trial, 2) == {0}
    trial.begin(0)
    trial.begin(0)
    assert await left(trial, 2) == when_full


@pytest.mark.parametrize(
    ("load", "told_s", "is_left"),
    [
        (Load(9, 5, 0.8), 99.0, True),  # at both limits
        (Load(9, 6, 0.1), 99.0, False),  # a queue
        (Load(9, 0, 0.81), 99.0, False),  # a full cache
        (Load(9, 6, 0.9), 89.0, True),  # figures of 11 s ago tell nothing
        (None, 99.0, True),
    ],
)
async def test_saturation_is_a_long_queue_or_a_full_cache(
    load: Load | None, told_s: float, is_left: bool
) -> None:
    trial = Trial(profile("saturation"), [worker(0, load=load, load_told_s=told_s), worker(1)])
    trial.now_s = 100.0
    assert await left(trial, 2) == ({0, 1} if is_left else {1})


async def test_a_saturated_fleet_still_serves_unless_strict() -> None:
    full = [worker(n, load=Load(9, 6, 0.1)) for n in range(2)]
    assert await left(Trial(profile("saturation"), full), 2) == {0, 1}
    assert await left(Trial(profile({"saturation": {"strict": True}}), full), 2) == set()


@pytest.mark.parametrize(
    ("depths", "expected"),
    [
        ({0: 5, 1: 4, 2: 3}, {0, 1}),  # of 5 usable blocks 4 are 80%
        ({0: 3, 1: 1}, {0, 1, 2}),  # nobody holds 80%
        ({}, {0, 1, 2}),
    ],
)
async def test_prefix_affinity_keeps_those_that_hold_most_of_the_prompt(
    depths: dict[int, int], expected: set[int]
) -> None:
    """96 tokens are 6 blocks, of which an engine can reuse 5."""
    trial = Trial(profile({"prefix-affinity": {"share_min": 0.8}}, matches=True), 3)
    trial.depths = depths
    assert {await trial.route(96) for _ in range(3)} == expected
    assert {await trial.route(10) for _ in range(3)} == {0, 1, 2}


@pytest.mark.parametrize(("most", "expected"), [(17, {0, 1, 2}), (18, {0, 2})])
async def test_an_imbalance_leaves_those_with_the_fewest_requests(
    most: int, expected: set[int]
) -> None:
    trial = Trial(profile({"imbalance": {"requests": 16}}), 3)
    for number, requests in ((0, 1), (1, most), (2, 1)):
        for _ in range(requests):
            trial.begin(number)
    assert await left(trial, 3) == expected


@pytest.mark.parametrize(("deviations", "expected"), [(2.2, 6), (2.1, 5)])
async def test_deviation_removes_those_with_far_more_requests(
    deviations: float, expected: int
) -> None:
    """Requests 0, 0, 0, 0, 1 and 5: mean 1, deviation sqrt(26 / 6 - 1) = 1.826; 5 is 2.19 above."""
    trial = Trial(profile({"deviation": {"deviations": deviations}}), 6)
    trial.begin(4)
    for _ in range(5):
        trial.begin(5)
    assert await left(trial, 6) == set(range(expected))


async def test_availability_is_judged_among_workers_that_can_serve() -> None:
    """The only worker of the zone fails its requests; it is still better than none."""
    workers = [worker(0, labels={"zone": "eu"}), worker(1)]
    document = profile("available", {"label": {"name": "zone", "values": ["eu"]}})
    trial = Trial(document, workers)
    for _ in range(3):
        trial.fleet.failed(trial.fleet.worker(trial.row(0)), Trouble.FAILING, 0.0)
    assert await trial.route() == 0


async def test_an_explanation_tells_which_filter_removed_whom() -> None:
    document = profile({"role": {"roles": ["a"]}}, {"label": {"name": "zone", "values": ["eu"]}})
    workers = [
        worker(0, role="a", labels={"zone": "eu"}),
        worker(1, role="a"),
        worker(2, role="b"),
    ]
    trial = Trial(document, workers)
    assert await trial.route() == 0
    kept = trial.explain().kept
    rows = [trial.row(number) for number in range(3)]
    assert {name: mask[rows].tolist() for name, mask in kept.items()} == {
        "role": [True, True, False],
        "label": [True, False, True],
    }
    trial.fleet.columns.present[:] = False
    assert trial.explain().costs.tolist() == [0.0] * trial.fleet.columns.rows
