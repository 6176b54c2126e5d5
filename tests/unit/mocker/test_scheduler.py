"""Batching: what a step computes, who waits, who is preempted, and what an abort gives back."""

from array import array
from itertools import count

import pytest

from kvatlas_mocker.cache import PrefixCache
from kvatlas_mocker.hashing import BlockHasher, HashKey
from kvatlas_mocker.scheduler import (
    QueueFullError,
    Request,
    Sampled,
    Scheduler,
    pseudorandom_tokens,
)
from kvatlas_mocker.timing import StepCost

SIZE = 4


def scheduler(
    *, blocks: int = 64, running: int = 8, waiting: int = 8, step: int = 1000
) -> Scheduler:
    return Scheduler(
        PrefixCache(blocks=blocks, block_size=SIZE),
        BlockHasher(seed="test", block_size=SIZE),
        running_max=running,
        waiting_max=waiting,
        step_tokens_max=step,
    )


def request(first: int, tokens: int, output: int) -> Request:
    prompt = array("I", range(first, first + tokens))
    return Request.of(prompt, HashKey(), output_max=output, output=count(first + 500_000))


def steps(one: Scheduler) -> list[list[Sampled]]:
    done: list[list[Sampled]] = []
    while (step := one.begin_step()) is not None:
        done.append(one.end_step(step))
    return done


def test_a_request_gets_its_tokens_one_a_step_and_then_its_blocks_are_free() -> None:
    one = scheduler()
    one.add(request(0, 10, 3))
    assert [[s.token for s in step] for step in steps(one)] == [[500_000], [500_001], [500_002]]
    assert one.cache.usage == 0
    assert one.counters.generated_tokens == 3


def test_only_uncached_tokens_are_prefill() -> None:
    one = scheduler()
    one.add(request(0, 10, 1))
    steps(one)
    one.add(request(0, 12, 2))
    step = one.begin_step()
    assert step is not None
    assert (step.prefill_tokens, step.decoding) == (4, 0)
    one.end_step(step)
    step = one.begin_step()
    assert step is not None
    assert (step.prefill_tokens, step.decoding) == (0, 1)
    assert (one.counters.queried_tokens, one.counters.hit_tokens) == (22, 8)


def test_a_long_prompt_is_computed_over_several_steps_beside_who_decodes() -> None:
    one = scheduler(step=8)
    one.add(request(0, 4, 5))
    one.end_step(one.begin_step() or pytest.fail("nothing to do"))
    one.add(request(1000, 20, 1))
    seen: list[tuple[int, int]] = []
    while (step := one.begin_step()) is not None:
        seen.append((step.prefill_tokens, step.decoding))
        one.end_step(step)
    assert seen == [(7, 1), (7, 1), (6, 1), (0, 1)]


def test_a_block_is_shared_in_the_step_that_computes_it() -> None:
    one = scheduler()
    one.add(request(0, 10, 1))
    one.add(request(0, 10, 1))
    step = one.begin_step()
    assert step is not None
    assert step.prefill_tokens == 10 + 2


def test_requests_wait_for_a_place_in_the_batch_and_the_queue_is_bounded() -> None:
    one = scheduler(running=1, waiting=2)
    one.add(request(0, 4, 2))
    one.add(request(100, 4, 2))
    with pytest.raises(QueueFullError):
        one.add(request(200, 4, 2))
    one.begin_step()
    assert (len(one.running), len(one.waiting)) == (1, 1)


def test_requests_wait_for_blocks() -> None:
    one = scheduler(blocks=4)
    first, second = request(0, 12, 2), request(100, 12, 1)
    one.add(first)
    one.add(second)
    order = [s.request for step in steps(one) for s in step]
    assert order == [first, first, second]


def test_without_blocks_the_last_admitted_gives_way_and_loses_no_token() -> None:
    one = scheduler(blocks=5)
    first, second = request(0, 8, 9), request(100, 8, 9)
    one.add(first)
    one.add(second)
    tokens: dict[Request, list[int]] = {first: [], second: []}
    for step in steps(one):
        for sampled in step:
            tokens[sampled.request].append(sampled.token)
    assert one.counters.preemptions > 0
    assert tokens[first] == list(range(500_000, 500_009))
    assert tokens[second] == list(range(500_100, 500_109))
    assert one.cache.usage == 0


def test_an_abort_gives_the_blocks_back_wherever_the_request_is() -> None:
    one = scheduler(running=1)
    first, second = request(0, 10, 100), request(100, 10, 100)
    one.add(first)
    one.add(second)
    step = one.begin_step()
    assert step is not None
    assert one.cache.usage > 0
    one.abort(second)
    one.abort(first)
    one.abort(first)
    assert one.cache.usage == 0
    assert one.end_step(step) == []
    assert one.begin_step() is None
    assert one.requests() == []


def test_a_step_costs_by_its_work_and_by_the_speedup() -> None:
    one = scheduler()
    one.add(request(0, 100, 2))
    step = one.begin_step()
    assert step is not None
    cost = StepCost(base_s=1.0, prefill_token_s=0.5, decode_request_s=0.25, speedup=2.0)
    assert cost.step_s(step) == (1.0 + 50.0) / 2
    one.end_step(step)
    step = one.begin_step()
    assert step is not None
    assert cost.step_s(step) == (1.0 + 0.25) / 2
    assert StepCost(1.0, 1.0, 1.0, float("inf")).step_s(step) == 0


def test_what_the_model_says_depends_on_the_seed_alone() -> None:
    choices = array("I", range(1000))

    def said(seed: int) -> list[int]:
        walk = pseudorandom_tokens(seed, choices)
        return [next(walk) for _ in range(50)]

    assert said(7) == said(7)
    assert said(7) != said(8)
    assert set(said(7)) <= set(choices)
