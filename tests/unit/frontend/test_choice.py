"""The choices of the built-in policies."""

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from kvatlas_client import Load, Matches, WorkerKey, WorkerState
from kvatlas_frontend.api.body import OpaquePrompt, ParsedBody, Prompt, TokenPrompt
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.fleet.models import ModelRoute
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord
from kvatlas_frontend.routing.check import check
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.interfaces import NoIndexerError
from kvatlas_frontend.routing.plugin import Services
from kvatlas_frontend.routing.plugins import built_in
from kvatlas_frontend.routing.preparation import Preparation
from kvatlas_frontend.routing.profile import load_profile
from kvatlas_frontend.routing.selector import Selector
from kvatlas_frontend.routing.slots import MATCHES, REQUEST, TOKENS, RoutingRequest, Tokens
from kvatlas_frontend.routing.workflow import RoutingPlan, SingleDispatch
from kvatlas_frontend.tokens.prompt_tokenizer import PromptTokens, TokensUnavailableError

BLOCK = 16
STAGES = ("tokenize", "hash", "find", "choose")


class Clock:
    def __init__(self) -> None:
        self.observed: list[float] = []

    def observe(self, amount: float) -> None:
        self.observed.append(amount)


class Scripted:
    """Tokens and matches as told."""

    def __init__(self) -> None:
        self.matches: dict[int, int] = {}
        self.down = False

    async def tokens(self, prompt: Prompt, model: str) -> PromptTokens:
        del model
        if isinstance(prompt, TokenPrompt):
            return PromptTokens(prompt.tokens, whole=True)
        raise TokensUnavailableError

    async def find(
        self, chunk_hashes: NDArray[np.uint64], *, limit: int, deadline_ms: float
    ) -> Matches:
        assert (limit, deadline_ms) == (64, 100.0)
        assert len(chunk_hashes)
        if self.down:
            raise NoIndexerError
        return Matches(
            np.array(list(self.matches), dtype=np.uint64),
            np.zeros(len(self.matches), dtype=np.uint32),
            np.array(list(self.matches.values()), dtype=np.uint32),
            "replica:1",
        )


def load(requests: int | None) -> Load | None:
    return None if requests is None else Load(requests, 0, 0.0)


class Router:
    def __init__(self, policy: str, workers: int) -> None:
        self.scripted = Scripted()
        self.now_s = 0.0
        self.fleet = Fleet()
        self.report(*([None] * workers))
        self.timers = {name: Clock() for name in STAGES}
        services = Services(
            fleet=self.fleet,
            tokens=self.scripted,
            matches=self.scripted,
            block_size=BLOCK,
            deadline_ms=100.0,
            now_s=lambda: self.now_s,
        )
        profile = check(load_profile(policy), built_in())
        self.plugin_timers: dict[tuple[str, str], Clock] = {}
        self.preparation = Preparation(
            [profile],
            services,
            timers=self.timers,
            plugin_timers=self.plugin_timer,
            now_s=lambda: self.now_s,
        )
        selector = Selector(
            profile,
            services,
            timers=self.timers,
            plugin_timers=self.plugin_timer,
            now_s=lambda: self.now_s,
        )
        self.dispatch = SingleDispatch(self.preparation, selector, self.fleet, block_size=BLOCK)

    def plugin_timer(self, kind: str, plugin: str) -> Clock:
        return self.plugin_timers.setdefault((kind, plugin), Clock())

    def report(self, *requests: int | None) -> None:
        records = tuple(
            WorkerRecord(WorkerKey(i, 0), WorkerState.LIVE, 1, f"http://e{i}:1", load(reported))
            for i, reported in enumerate(requests)
        )
        self.fleet.apply(FleetChange(full=True, workers=records, removed=()))

    async def route(self, tokens: int | None, start: int = 0) -> RoutingPlan:
        ids = np.arange(start, start + (tokens or 0), dtype=np.uint32)
        prompt = OpaquePrompt() if tokens is None else TokenPrompt(ids, None)
        body = ParsedBody(None, stream=True, cache_salt=None, prompt=prompt, batch=False)
        request = RoutingRequest(body, ModelRoute("m", None, None))
        _, plan = await self.dispatch.route(request)
        assert plan is not None
        return plan


def worker(plan: RoutingPlan) -> int:
    return plan.worker.key.worker_id


async def test_the_deepest_of_idle_workers_is_chosen() -> None:
    router = Router("kv-aware", 3)
    router.scripted.matches = {1: 2, 2: 3}
    plan = await router.route(100)
    assert (worker(plan), plan.depth, plan.reason) == (2, 3, Reason.KV_MATCH)


async def test_a_queue_outweighs_a_match_that_is_smaller() -> None:
    """Two misses of 200 tokens wait on the holder; it would spare 48 of the next 100."""
    router = Router("kv-aware", 2)
    router.scripted.matches = {0: 3}
    for _ in range(2):
        router.fleet.tracker.begin(0, prompt_tokens=200, cached_tokens=0)
    plan = await router.route(100)
    assert (worker(plan), plan.depth, plan.reason) == (1, 0, Reason.LOAD_OUTWEIGHS)


async def test_a_match_outweighs_a_queue_that_is_smaller() -> None:
    router = Router("kv-aware", 2)
    router.scripted.matches = {0: 60}
    router.fleet.tracker.begin(0, prompt_tokens=200, cached_tokens=0)
    plan = await router.route(1000)
    assert (worker(plan), plan.reason) == (0, Reason.KV_MATCH)


async def test_prompts_that_were_computed_wait_no_longer() -> None:
    router = Router("kv-aware", 2)
    router.scripted.matches = {0: 3}
    tickets = [router.fleet.tracker.begin(0, prompt_tokens=60, cached_tokens=0) for _ in range(3)]
    for ticket in tickets:
        ticket.first_byte()
    for ticket in tickets:
        router.fleet.release(ticket)
    assert worker(await router.route(100)) == 0


async def test_no_match_anywhere_goes_by_load() -> None:
    router = Router("kv-aware", 2)
    router.fleet.tracker.begin(0, prompt_tokens=10, cached_tokens=0)
    plan = await router.route(100)
    assert (worker(plan), plan.reason) == (1, Reason.NO_MATCH)


async def test_a_burst_of_one_prompt_does_not_herd() -> None:
    router = Router("kv-aware", 4)
    chosen = Counter([worker(await router.route(100)) for _ in range(40)])
    assert set(chosen) == {0, 1, 2, 3}
    assert max(chosen.values()) == 10


async def test_equal_prompts_meet_on_idle_fleets_and_different_ones_spread() -> None:
    """Two frontends that know nothing of one another agree; without load there is no other tie."""
    first, second = Router("kv-aware", 8), Router("kv-aware", 8)
    seen: Counter[int] = Counter()
    for start in range(0, 8_000, 100):
        plans = [await router.route(100, start) for router in (first, second)]
        assert worker(plans[0]) == worker(plans[1])
        seen[worker(plans[0])] += 1
        for router, plan in zip((first, second), plans, strict=True):
            router.fleet.release(plan.ticket)
    assert len(seen) == 8
    assert max(seen.values()) < 30


async def test_without_an_indexer_load_decides() -> None:
    router = Router("kv-aware", 2)
    router.scripted.down = True
    router.fleet.tracker.begin(0, prompt_tokens=10, cached_tokens=0)
    plan = await router.route(100)
    assert (worker(plan), plan.depth, plan.reason) == (1, 0, Reason.NO_INDEXER)


async def test_without_tokens_load_decides() -> None:
    router = Router("kv-aware", 2)
    plan = await router.route(None)
    assert (plan.depth, plan.reason) == (0, Reason.NO_TOKENS)


@pytest.mark.parametrize("tokens", [1, BLOCK - 1, BLOCK])
async def test_a_prompt_without_a_usable_block_asks_nobody(tokens: int) -> None:
    router = Router("kv-aware", 2)
    router.scripted.down = True
    assert (await router.route(tokens)).reason is Reason.NO_MATCH


async def test_the_least_loaded_worker_counts_other_frontends_too() -> None:
    router = Router("least-loaded", 3)
    router.report(4, 2, 3)
    chosen = [worker(await router.route(None)) for _ in range(3)]
    assert sorted(chosen) == [1, 1, 2]
    assert chosen[0] == 1
    plan = await router.route(None)
    assert plan.reason is Reason.LEAST_LOADED


async def test_turns_are_taken_and_the_absent_are_passed_over() -> None:
    router = Router("round-robin", 3)
    assert [worker(await router.route(None)) for _ in range(4)] == [0, 1, 2, 0]
    router.fleet.columns.unreachable_until_s[1] = 10.0
    assert [worker(await router.route(None)) for _ in range(3)] == [2, 0, 2]
    router.now_s = 10.0
    assert [worker(await router.route(None)) for _ in range(2)] == [0, 1]
    plan = await router.route(None)
    assert (plan.reason, plan.depth) == (Reason.ROUND_ROBIN, 0)


async def test_an_adapter_goes_where_it_is_served() -> None:
    router = Router("round-robin", 3)
    rows = np.array([False, False, True])
    body = ParsedBody(None, stream=True, cache_salt=None, prompt=OpaquePrompt(), batch=False)
    for _ in range(3):
        request = RoutingRequest(body, ModelRoute("poet", "poet", rows))
        _, plan = await router.dispatch.route(request)
        assert plan is not None
        assert worker(plan) == 2


async def test_when_all_have_been_tried_there_is_no_plan() -> None:
    router = Router("kv-aware", 2)
    body = ParsedBody(None, stream=True, cache_salt=None, prompt=OpaquePrompt(), batch=False)
    context, plan = await router.dispatch.route(RoutingRequest(body, ModelRoute("m", None, None)))
    assert plan is not None
    again = router.dispatch.plan(context, {plan.worker.record.engine_url})
    assert again is not None
    assert (again.worker.key != plan.worker.key, again.reason) == (True, Reason.RETRY)
    assert router.dispatch.plan(context, {each.record.engine_url for each in router.fleet}) is None


async def test_every_stage_is_timed_once_a_request() -> None:
    router = Router("kv-aware", 2)
    await router.route(100)
    assert {name: len(timer.observed) for name, timer in router.timers.items()} == dict.fromkeys(
        STAGES, 1
    )


async def test_plugins_are_timed_in_one_choice_of_sixteen() -> None:
    router = Router("kv-aware", 2)
    for _ in range(32):
        await router.route(100)
    counts = {place: len(timer.observed) for place, timer in router.plugin_timers.items()}
    prepared = {("prepare", name): 32 for name in ("tokens", "chunk-hashes", "matches")}
    chosen = dict.fromkeys(
        [
            ("filter", "available"),
            ("filter", "serves-model"),
            ("score", "prefill"),
            ("score", "load"),
            ("pick", "lowest-cost"),
        ],
        2,
    )
    assert counts == prepared | chosen


async def test_what_is_prepared_already_is_not_prepared_again() -> None:
    router = Router("kv-aware", 2)
    body = ParsedBody(None, stream=True, cache_salt=None, prompt=OpaquePrompt(), batch=False)
    context = RoutingContext()
    context[REQUEST] = RoutingRequest(body, ModelRoute("m", None, None))
    context[TOKENS] = Tokens(np.arange(100, dtype=np.uint32), whole=True)
    router.scripted.matches = {1: 3}
    await router.preparation.prepare(context)
    assert context[MATCHES].depths[router.fleet.rows[WorkerKey(1, 0)]] == 3
    assert len(router.plugin_timers["prepare", "tokens"].observed) == 0
