"""From a trace to requests: arrivals, prompts, and the sizes that are worked out from them."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from kvatlas_chassis import SettingsError
from kvatlas_frontend.routing.profile import BUILT_IN
from kvatlas_loadtest.arrivals import compress, smooth_arrivals, speedup_for
from kvatlas_loadtest.demo.options import POLICIES, read_options
from kvatlas_loadtest.demo.plan import make_plan
from kvatlas_loadtest.prompts import prompt_tokens, scaled_length, tokens_per_id_for
from kvatlas_loadtest.trace import TraceRow


def request(*ids: int, length: int | None = None, output: int = 10) -> TraceRow:
    return TraceRow(0.0, length or 512 * len(ids), output, ids)


class Phase(random.Random):
    def random(self) -> float:
        return 0.5


def test_requests_of_one_step_are_spread_evenly_over_it() -> None:
    arrivals = smooth_arrivals([5_000] * 3 + [8_000, 11_000, 11_000], rng=Phase())
    assert arrivals == [500, 1_500, 2_500, 3_000, 6_750, 8_250]


def test_a_step_before_a_pause_lasts_no_longer_than_the_others() -> None:
    arrivals = smooth_arrivals([0, 0, 1_000, 2_000, 2_000, 90_000], rng=Phase())
    assert arrivals == [250, 750, 1_000, 2_250, 2_750, 90_000]


def test_arrivals_that_come_one_by_one_keep_their_times() -> None:
    assert smooth_arrivals([10, 25, 31], rng=random.Random(1)) == [0, 15, 21]


def test_a_trace_with_one_arrival_time_is_spread_a_request_a_second() -> None:
    assert smooth_arrivals([7, 7], rng=Phase()) == [500, 1_500]


def test_smoothing_depends_on_the_seed_alone() -> None:
    stamps = [0.0] * 5 + [3_000.0] * 5
    assert smooth_arrivals(stamps, rng=random.Random(3)) == smooth_arrivals(
        stamps, rng=random.Random(3)
    )
    assert smooth_arrivals(stamps, rng=random.Random(3)) != smooth_arrivals(
        stamps, rng=random.Random(4)
    )


def test_time_is_compressed_to_a_rate() -> None:
    assert compress([0, 3_000], speedup=6) == [0.0, 0.5]
    assert speedup_for([0, 0, 0, 20_000], rate=2) == 10.0
    assert speedup_for([0], rate=2) == 1.0


def test_prompts_share_exactly_the_ids_they_share() -> None:
    first = prompt_tokens(request(1, 2, 3), tokens_per_id=64, seed=5)
    second = prompt_tokens(request(1, 2, 4), tokens_per_id=64, seed=5)
    assert len(first) == 192
    assert first.dtype == np.uint32
    assert (first[:128] == second[:128]).all()
    assert (first[128:] != second[128:]).any()
    assert (first[:64] != first[64:128]).any()
    assert first.min() >= 1_000
    assert first.max() < 33_000


def test_prompts_depend_on_the_seed() -> None:
    one, two = (prompt_tokens(request(1), tokens_per_id=64, seed=seed) for seed in (0, 1))
    assert (one != two).any()


@pytest.mark.parametrize(
    ("tokens", "scaled"), [(512, 64), (1, 1), (8, 1), (9, 2), (513, 65), (1_000, 125)]
)
def test_a_partly_used_id_gives_its_share_of_tokens(tokens: int, scaled: int) -> None:
    row = request(*range(-(-tokens // 512)), length=tokens)
    assert scaled_length(row, tokens_per_id=64) == scaled
    assert len(prompt_tokens(row, tokens_per_id=64, seed=0)) == scaled


def test_ids_shrink_until_the_mean_prompt_is_short_but_never_below_a_block() -> None:
    rows = [request(*range(8)), request(*range(24))]  # mean 16 ids
    for mean, expected in ((8_192, 512), (8_191, 256), (1_024, 64), (1, 16)):
        assert tokens_per_id_for(rows, block_size=16, prompt_tokens_mean=mean) == expected
    assert tokens_per_id_for(rows, block_size=1_024, prompt_tokens_mean=1) == 512


def test_a_plan_holds_what_is_sent_and_is_the_same_every_time() -> None:
    options = read_options(["--requests", "40", "--engines", "3", "--rate", "20"])
    plan, again = make_plan(options), make_plan(options)
    assert [(r.at_s, r.body) for r in plan.requests] == [(r.at_s, r.body) for r in again.requests]
    assert plan.capacity == again.capacity
    assert len(plan.requests) == 40
    assert plan.lasts_s == pytest.approx(2.0)
    first = json.loads(plan.requests[0].body)
    assert len(first["prompt"]) == len(plan.requests[0].tokens)
    assert first["stream"] is True
    assert first["stream_options"] == {"include_usage": True}
    assert first["max_tokens"] >= 1
    assert [request.at_s for request in plan.requests] == sorted(r.at_s for r in plan.requests)


def test_engines_are_half_as_busy_as_in_the_trace() -> None:
    plan = make_plan(read_options(["--requests", "20", "--speedup", "16", "--tokens-per-id", "64"]))
    assert plan.speedup == 16
    assert plan.engine_speedup == 4.0


def test_a_trace_of_a_larger_fleet_does_not_swamp_the_engines(tmp_path: Path) -> None:
    file = tmp_path / "dense.jsonl"
    rows = [
        {
            "timestamp": i,
            "input_length": 8_192,
            "output_length": 1,
            "hash_ids": [16 * i + j for j in range(16)],
        }
        for i in range(100)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--trace", str(file), "--rate", "50", "--engines", "4", "--tokens-per-id", "512"]
    plan = make_plan(read_options(words))
    assert plan.speedup == pytest.approx(0.0495)
    # 819,200 tokens of 60 us are 49 s of work, for 4 engines in a quarter of 2 s
    assert plan.engine_speedup == pytest.approx(49.152 / 4 / 0.5, rel=0.02)


def test_options_have_defaults_and_are_checked() -> None:
    assert read_options([]).policies == POLICIES
    assert read_options(["--policy", "round-robin", "kv-aware"]).policies == (
        "round-robin",
        "kv-aware",
    )
    assert read_options(["--policy", *BUILT_IN]).policies == BUILT_IN
    for words in (
        ["--requests", "0"],
        ["--engines", "-1"],
        ["--policy", "fastest"],
        ["--speedup", "0"],
        ["--rate", "inf"],
        ["--no-such-flag"],
        ["--json", "/nonexistent/file.json"],
    ):
        with pytest.raises(SettingsError) as error:
            read_options(words)
        assert error.value.exit_status == 2
        assert "\n" not in str(error.value)


def test_a_bad_trace_is_the_users_to_mend(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("{}\n")
    with pytest.raises(
        SettingsError, match=r"kvatlas demo: bad\.jsonl, line 1: timestamp: Field required"
    ):
        make_plan(read_options(["--trace", str(file)]))
