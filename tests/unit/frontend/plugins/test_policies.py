"""The shipped policies: each chooses as its definition says, on examples computed by hand."""

from collections import Counter

import pytest

from kvatlas_client import Load
from kvatlas_frontend.api.body import TextPrompt
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.routing.profile import BUILT_IN
from kvatlas_frontend.routing.trial import Trial, worker

BLOCK = 16


def chat(chars: int) -> TextPrompt:
    return TextPrompt("x" * chars, add_special_tokens=True, keep_last=None)


@pytest.mark.parametrize("policy", BUILT_IN)
async def test_every_policy_routes_and_retries_whatever_is_down(policy: str) -> None:
    trial = Trial(policy, 3)
    for prompt in (100, 0, chat(50)):
        chosen = await trial.route(prompt)
        assert chosen is not None
        assert trial.retry({chosen}) not in (None, chosen)
        trial.is_indexer_down = not trial.is_indexer_down
    assert trial.retry({0, 1, 2}) is None


async def test_least_loaded_counts_tokens_and_least_requests_requests() -> None:
    """Worker 0 has one request of 4,000 characters, worker 1 three of 400."""
    chosen: dict[str, int | None] = {}
    for policy in ("least-loaded", "least-requests"):
        trial = Trial(policy, 2)
        trial.begin(0, tokens=1000)
        for _ in range(3):
            trial.begin(1, tokens=100)
        chosen[policy] = await trial.route(chat(40))
    assert chosen == {"least-loaded": 1, "least-requests": 0}


async def test_least_loaded_estimates_what_it_sends() -> None:
    """4,000 characters count for 1,000 tokens; 1,200 for 300, so four of these exceed it."""
    trial = Trial("least-loaded", 2)
    first = await trial.route(chat(4000), keep=True)
    assert first is not None
    others = [await trial.route(chat(1200), keep=True) for _ in range(4)]
    assert others == [1 - first] * 4
    assert await trial.route(chat(1200), keep=True) == first


async def test_random_is_even() -> None:
    trial = Trial("random", 4)
    counts = Counter([await trial.route(keep=True) for _ in range(4000)])
    assert all(count == pytest.approx(1000, abs=120) for count in counts.values())
    assert trial.plan is not None
    assert trial.plan.reason is Reason.RANDOM


async def test_a_session_stays_until_its_worker_is_saturated() -> None:
    trial = Trial("session-affinity", 2)
    home = await trial.route(100, headers={"session-id": "s"})
    assert home is not None
    trial.begin(home, tokens=16_384)
    assert await trial.route(100, headers={"session-id": "s"}) == home
    trial.tell(worker(home, load=Load(9, 6, 0.2)), full=False)
    assert await trial.route(100, headers={"session-id": "s"}) == 1 - home


async def test_a_session_moves_once_another_worker_is_cheaper_by_the_margin() -> None:
    trial = Trial("session-affinity", 2)
    home = await trial.route(100, headers={"session-id": "s"})
    assert home is not None
    trial.begin(home, tokens=16_385)
    assert await trial.route(100, headers={"session-id": "s"}) == 1 - home


async def test_consistent_hashing_goes_by_session_then_by_first_blocks() -> None:
    trials = [Trial("consistent-hashing", 8) for _ in range(2)]
    for headers in ({"session-id": "s"}, {}):
        chosen = {await trial.route(100, headers=headers) for trial in trials}
        assert len(chosen) == 1
    assert await trials[0].route(65) == await trials[0].route(200)  # 4 blocks in common


async def test_dynamo_cost_on_the_example_of_its_documentation() -> None:
    """A prompt of 10 blocks. Prefill 8, 5 and 2 blocks; decode 10, 5 and 9: costs 18, 10 and 11.

    `docs/design_docs/router_design.md` of ai-dynamo/dynamo, "Example calculation".
    """
    trial = Trial("dynamo-cost", 3)
    trial.depths = {0: 2, 1: 5, 2: 8}
    for number, blocks in ((0, 10), (1, 5), (2, 9)):
        trial.begin(number, tokens=blocks * BLOCK)
        trial.fleet.columns.prefill_tokens[trial.row(number)] = 0  # computed already
    assert await trial.route(10 * BLOCK) == 1
    assert trial.retry({1}) == 2
    assert trial.retry({1, 2}) == 0


async def test_dynamo_cost_charges_prompts_that_wait_for_their_prefill() -> None:
    """Worker 0 holds all of it but one block; 10 blocks wait: 11 + 10 against 10 + 0 blocks."""
    trial = Trial("dynamo-cost", 2)
    trial.depths = {0: 9}
    trial.begin(0, tokens=10 * BLOCK)
    assert await trial.route(10 * BLOCK) == 1


async def test_aibrix_takes_the_longest_match_then_the_fewest_requests() -> None:
    trial = Trial("aibrix-prefix-cache", 3)
    trial.depths = {0: 3, 1: 5, 2: 5}
    trial.begin(1)
    assert await trial.route(100) == 2
    assert trial.plan is not None
    assert (trial.plan.depth, trial.plan.reason) == (5, Reason.KV_MATCH)


@pytest.mark.parametrize(("requests", "chosen"), [(16, 1), (17, 0)])
async def test_aibrix_ignores_matches_while_the_fleet_is_out_of_balance(
    requests: int, chosen: int
) -> None:
    """Requests 0 and n: mean n / 2, deviation n / 2; n is 1 deviation above, so only balance counts."""
    trial = Trial("aibrix-prefix-cache", 2)
    trial.depths = {1: 5}
    for _ in range(requests):
        trial.begin(1)
    assert await trial.route(100) == chosen


async def test_aibrix_avoids_a_hot_spot_that_holds_the_prompt() -> None:
    """Requests 7 and nine times 0: mean 0.7, deviation 2.1, so the bound is 4.9."""
    trial = Trial("aibrix-prefix-cache", 10)
    trial.depths = {9: 5, 4: 1}
    for _ in range(7):
        trial.begin(9)
    assert await trial.route(100) == 4


async def test_aibrix_without_a_match_takes_the_fewest_requests() -> None:
    trial = Trial("aibrix-prefix-cache", 2)
    trial.begin(0)
    assert await trial.route(100) == 1
