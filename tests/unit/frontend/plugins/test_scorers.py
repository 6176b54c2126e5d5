"""Scorers: their values, computed by hand on small fleets."""

from typing import Any

import numpy as np
import pytest

from kvatlas_client import Load
from kvatlas_frontend.routing.plugin import Kind
from kvatlas_frontend.routing.plugins import built_in
from kvatlas_frontend.routing.trial import Trial, worker

PREPARE = ["session", "tokens", "chunk-hashes", "matches"]


class Scored(Trial):
    """A trial whose profile has one scorer, and that shows its values."""

    def __init__(self, scorer: Any, workers: Any) -> None:  # noqa: ANN401 - any entry, any workers
        pick = "lowest-cost" if scorer_name(scorer) in ("prefill", "load") else "highest-score"
        super().__init__(
            {"name": "p", "prepare": PREPARE, "score": [scorer], "pick": pick}, workers
        )
        self.scorer = scorer

    def scores(self) -> list[float]:
        """The values for the last request, by worker id."""
        (values,) = self.explain().values.values()
        return [round(float(values[self.row(number)]), 4) for number in range(len(self.fleet))]


def scorer_name(scorer: Any) -> str:  # noqa: ANN401 - any entry
    return scorer if isinstance(scorer, str) else next(iter(scorer))


async def test_prefill_is_the_misses_and_the_queue() -> None:
    """100 tokens, of which 3 blocks of 16 are held: 52 misses, times 2; the queue has 40 tokens."""
    trial = Scored({"prefill": {"miss_weight": 2, "queue_weight": 0.5}}, 2)
    trial.depths = {0: 3}
    trial.begin(1, tokens=40)
    await trial.route(100)
    assert trial.scores() == [104.0, 220.0]


async def test_load_is_requests_and_tokens() -> None:
    """Worker 0: 1 request of 100 tokens here and 2 elsewhere. 3 * 64 + 100 * 0.5."""
    trial = Scored(
        {"load": {"per_request": 64, "per_token": 0.5}},
        [worker(0, load=Load(2, 0, 0.0)), worker(1)],
    )
    trial.begin(0, tokens=100)
    await trial.route()
    assert trial.scores() == [242.0, 0.0]


async def test_cache_affinity_is_the_share_of_usable_blocks() -> None:
    """81 tokens are 5 blocks, all usable; 80 tokens have 4 usable ones."""
    trial = Scored("cache-affinity", 3)
    trial.depths = {0: 2, 1: 4}
    await trial.route(81)
    assert trial.scores() == [0.4, 0.8, 0.0]
    await trial.route(80)
    assert trial.scores() == [0.5, 1.0, 0.0]
    await trial.route(10)
    assert trial.scores() == [0.0, 0.0, 0.0]


async def test_least_load_is_linear_in_tokens() -> None:
    trial = Scored("least-load", 3)
    await trial.route()
    assert trial.scores() == [1.0, 1.0, 1.0]
    trial.begin(0, tokens=100)
    trial.begin(1, tokens=25)
    assert trial.scores() == [0.0, 0.75, 1.0]


async def test_running_requests_is_linear_in_requests() -> None:
    trial = Scored("running-requests", [worker(0), worker(1, load=Load(3, 1, 0.0)), worker(2)])
    trial.begin(2)
    await trial.route()
    assert trial.scores() == [1.0, 0.0, 0.75]


async def test_kv_usage_is_the_free_share_reported_or_estimated() -> None:
    """Worker 2 reports nothing: 400 tokens of 100 blocks of 16 are in flight, a quarter."""
    trial = Scored(
        "kv-usage", [worker(0, load=Load(0, 0, 0.9)), worker(1), worker(2, capacity_blocks=100)]
    )
    trial.begin(2, tokens=400)
    trial.begin(0, tokens=400)
    await trial.route()
    assert trial.scores() == [0.1, 1.0, 0.75]


async def test_locality_is_the_share_of_labels_in_common() -> None:
    own = {"region": "eu", "zone": "eu-1"}
    trial = Scored(
        {"locality": {"labels": own}},
        [
            worker(0, labels=own),
            worker(1, labels={"region": "eu", "zone": "eu-2"}),
            worker(2, labels={"region": "us", "zone": "eu-1b"}),
        ],
    )
    await trial.route()
    assert trial.scores() == [1.0, 0.5, 0.0]


async def test_a_session_scores_where_it_was_last() -> None:
    trial = Scored({"session": {"ttl_s": 10}}, 3)
    first = await trial.route(headers={"session-id": "s"})
    assert first is not None
    expected = [float(number == first) for number in range(3)]
    assert trial.scores() == expected
    await trial.route(headers={"session-id": "other"}, keep=True)
    trial.begin(first)
    assert await trial.route(headers={"session-id": "s"}) == first
    await trial.route()
    assert trial.scores() == [0.0, 0.0, 0.0]
    trial.now_s = 10.0
    assert trial.scores() == [0.0, 0.0, 0.0]


async def test_an_adapter_scores_where_it_was_used_lately() -> None:
    trial = Scored({"lora-affinity": {"ttl_s": 10, "adapters_max": 2}}, 3)
    first = await trial.route(lora="poet")
    assert first is not None
    assert trial.scores() == [float(number == first) for number in range(3)]
    trial.begin(first)
    assert await trial.route(lora="poet") == first
    await trial.route()
    assert trial.scores() == [0.0, 0.0, 0.0]
    trial.now_s = 10.0
    other = await trial.route(lora="poet")
    assert other != first


async def test_a_worker_that_takes_a_row_over_does_not_inherit_its_past() -> None:
    trial = Scored("lora-affinity", [worker(0)])
    await trial.route(lora="poet")
    row = trial.row(0)
    trial.tell(worker(7))
    assert trial.row(7) == row
    assert trial.explain().values["lora-affinity"][row] == 0.0


async def test_prompts_without_a_hit_go_where_the_last_one_is_longest_ago() -> None:
    """Three workers: the first three cold prompts visit each once, and the fourth the first again."""
    trial = Scored("no-hit-lru", 3)
    visited = [await trial.route(100) for _ in range(3)]
    assert set(visited) == {0, 1, 2}
    scores = trial.scores()
    assert [scores[int(number or 0)] for number in visited] == [1.0, 0.5, 0.0]
    assert await trial.route(100) == visited[0]
    trial.depths = {0: 1}
    await trial.route(100)
    assert trial.scores() == [0.0, 0.0, 0.0]


async def test_weights_multiply_and_values_add_up() -> None:
    """Shares of 0.5 and 1.0 of weight 2 against loads of 0 and 30 tokens, a share being 20 tokens."""
    document = {
        "name": "p",
        "score": [
            {"locality": {"weight": 2, "labels": {"a": "1", "b": "1"}}},
            {"load": {"per_token": 1}},
        ],
        "pick": "lowest-cost",
        "share_tokens": 20,
    }
    workers = [worker(0, labels={"a": "1"}), worker(1, labels={"a": "1", "b": "1"})]
    trial = Trial(document, workers)
    trial.begin(1, tokens=15)  # -20 against -40 + 15
    assert await trial.route() == 1
    trial.begin(1, tokens=15)  # -20 against -40 + 30
    assert await trial.route() == 0


@pytest.mark.parametrize("name", built_in().names(Kind.SCORE))
async def test_a_share_stays_between_0_and_1(name: str) -> None:
    """For every scorer that states shares, on a fleet of 40 with any load."""
    spec = built_in().get(Kind.SCORE, name)
    assert spec is not None
    if spec.unit is None or spec.unit.value != "share":
        return
    scorer: Any = {"locality": {"labels": {"zone": "a"}}} if name == "locality" else name
    rng = np.random.default_rng(7)
    trial = Scored(
        scorer,
        [
            worker(
                n,
                load=None if n % 3 else Load(int(rng.integers(9)), 0, float(rng.random())),
                labels={"zone": "ab"[n % 2]},
                capacity_blocks=n,
            )
            for n in range(40)
        ],
    )
    for _ in range(60):
        trial.depths = {int(n): int(rng.integers(1, 40)) for n in rng.integers(0, 40, size=5)}
        lora = ["poet", None][int(rng.integers(2))]
        await trial.route(int(rng.integers(700)), user="u", lora=lora, keep=True)
        assert all(0.0 <= score <= 1.0 for score in trial.scores())
