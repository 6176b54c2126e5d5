"""From outcomes to the JSON file and the table, in the shape that others rely on."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from kvatlas_loadtest.bench.main import BENCHES
from kvatlas_loadtest.bench.main import command as bench
from kvatlas_loadtest.bench.rows import Medians, Row, rows_table, write_rows
from kvatlas_loadtest.demo.options import read_options
from kvatlas_loadtest.demo.plan import Plan, make_plan
from kvatlas_loadtest.demo.replay import Outcome
from kvatlas_loadtest.demo.report import print_plan, results_table
from kvatlas_loadtest.demo.results import Summary, document, summarize
from kvatlas_loadtest.prometheus import Histogram


@pytest.fixture(name="plan")
def _plan() -> Plan:
    return make_plan(read_options(["--requests", "4", "--engines", "2"]))


def summary(plan: Plan) -> Summary:
    outcomes = [
        Outcome(None, 10.0, 0, "0/0", "no-match"),
        Outcome(None, 20.0, 64, "0/0", "kv-match"),
        Outcome(None, 30.0, 71, "1/0", "kv-match"),
        Outcome("status 500: broken", None, 999, "", ""),
    ]
    return summarize(
        plan,
        outcomes,
        block_size=16,
        evictions=12,
        fallbacks=1,
        routing_s=Histogram((0.001, float("inf")), (10.0, 10.0)),
    )


def shown(*things: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    for thing in things:
        console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_summary_counts_what_was_answered(plan: Plan) -> None:
    result = summary(plan)
    blocks = sum(len(request.blocks.blocks) for request in plan.requests[:3])
    assert (result.requests, result.errors, result.evictions, result.fallbacks) == (4, 1, 12, 1)
    assert result.hits.hit_blocks == 8  # 64 tokens are 4 blocks, 71 are 4 and a rest
    assert result.hits.blocks == blocks
    assert result.ttft_ms == {"p50": 20.0, "p95": 29.0, "p99": 29.8}
    assert result.routing_ms == {"p50": 0.5, "p99": 0.99}
    assert result.first_error == "status 500: broken"


def test_the_json_file_has_the_shape_that_others_read(plan: Plan) -> None:
    result = json.loads(json.dumps(document(plan, 2, {"kv-aware": summary(plan)})))
    assert result["trace"] == "conversation_slice.jsonl"
    assert result["requests"] == 4
    assert result["engines"] == 2
    assert result["infinite_cache_hit_ratio"] == pytest.approx(plan.infinite.ratio, abs=1e-6)
    assert set(result["policies"]) == {"kv-aware"}
    policy = result["policies"]["kv-aware"]
    assert set(policy) == {
        *("requests", "errors", "hit_ratio", "ttft_ms", "routing_ms", "evictions", "fallbacks")
    }
    assert set(policy["ttft_ms"]) == {"p50", "p95", "p99"}
    assert set(policy["routing_ms"]) == {"p50", "p99"}


def test_nothing_answered_is_no_time_rather_than_zero(plan: Plan) -> None:
    failed = [Outcome("refused", None, 0, "", "")] * 4
    empty = Histogram((), ())
    result = summarize(plan, failed, block_size=16, evictions=0, fallbacks=0, routing_s=empty)
    assert result.ttft_ms == {"p50": None, "p95": None, "p99": None}
    assert result.routing_ms == {"p50": None, "p99": None}
    assert result.hits.ratio == 0.0
    assert "-" in shown(results_table(plan, {"kv-aware": result}))


def test_the_table_has_a_column_a_policy_and_fits_eighty_columns(plan: Plan) -> None:
    names = ("kv-aware", "least-loaded", "round-robin")
    text = shown(results_table(plan, dict.fromkeys(names, summary(plan))))
    for word in (*names, "errors", "KV hit ratio", "infinite cache", "TTFT p99, ms", "routing p99"):
        assert word in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_what_was_scaled_is_said(plan: Plan) -> None:
    console = Console(file=io.StringIO(), width=200)
    print_plan(console, plan, read_options(["--requests", "4", "--engines", "2"]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert f"{plan.tokens_per_id} tokens stand for 512 of the trace" in text
    assert f"engines: 2 of {plan.capacity.blocks_per_engine:,} blocks of 16 tokens" in text


def test_a_rows_target_is_met_from_its_better_side() -> None:
    assert Row("b", "f", 1.0, "ms", 1.5).met is True
    assert Row("b", "f", 2.0, "ms", 1.5).met is False
    assert Row("b", "f", 900.0, "1/s", 800.0, "higher").met is True
    assert Row("b", "f", 700.0, "1/s", 800.0, "higher").met is False
    assert Row("b", "f", 1.0, "ms").met is None


def test_rows_are_written_as_others_read_them(tmp_path: Path) -> None:
    rows = [Row("hashing", "speed", 12.5, "GB/s", 0.8, "higher", {"block_size": 16})]
    write_rows(tmp_path / "rows.json", rows)
    assert json.loads((tmp_path / "rows.json").read_text()) == [
        {
            "bench": "hashing",
            "figure": "speed",
            "value": 12.5,
            "unit": "GB/s",
            "target": 0.8,
            "met": True,
            "settings": {"block_size": 16},
        }
    ]
    assert "≥ 0.8" in shown(rows_table(rows))


def test_medians_are_kept_by_name() -> None:
    values = Medians()
    for value in (5.0, 1.0, 3.0):
        values.add("a", value)
    assert values["a"] == 3.0


def test_benchmarks_are_listed_and_unknown_ones_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(BENCHES)
    assert bench(["no-such-bench"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
