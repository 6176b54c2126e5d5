"""The cell's counts as Prometheus sees them."""

from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from kvatlas_indexer.metrics import LAGGING_NAMED, CellCollector, LagCollector
from kvatlas_native import Cell
from tests.unit.cell.bench import Bench
from tests.unit.cell.speaker import Speaker, store


class ScriptedCell:
    """Answers what a test wrote down."""

    def counters(self) -> dict[str, int]:
        return {'records{reason="seen"}': 2, 'records{reason="older_epoch"}': 0, "events": 7}

    def gauges(self) -> dict[str, int]:
        return {"memberships": 9}

    def histograms(self) -> dict[str, tuple[list[float], list[int], float]]:
        return {"find_seconds": ([1e-6, 2e-6], [1, 3, 4], 0.5)}


def test_names_labels_and_buckets_are_those_of_the_cell_under_our_prefix() -> None:
    registry = CollectorRegistry()
    CellCollector(cast("Cell", ScriptedCell()), registry)
    lines = generate_latest(registry).decode().splitlines()
    assert {line for line in lines if not line.startswith("#")} == {
        'kvatlas_indexer_records_total{reason="seen"} 2.0',
        'kvatlas_indexer_records_total{reason="older_epoch"} 0.0',
        "kvatlas_indexer_events_total 7.0",
        "kvatlas_indexer_memberships 9.0",
        'kvatlas_indexer_find_seconds_bucket{le="1e-06"} 1.0',
        'kvatlas_indexer_find_seconds_bucket{le="2e-06"} 3.0',
        'kvatlas_indexer_find_seconds_bucket{le="+Inf"} 4.0',
        "kvatlas_indexer_find_seconds_count 4.0",
        "kvatlas_indexer_find_seconds_sum 0.5",
    }


def test_lag_is_told_in_sum_and_of_the_furthest_behind_by_name() -> None:
    bench = Bench()
    for worker_id in range(1, 100):
        speaker = Speaker(worker_id=worker_id)
        bench.feed(speaker.events(store(1)), speaker.heartbeat(last=1 + worker_id))
    registry = CollectorRegistry()
    LagCollector(bench.cell, registry, unix_ms=lambda: bench.now_ms + 70)
    lines = generate_latest(registry).decode().splitlines()
    assert "kvatlas_indexer_workers_lagging 99.0" in lines
    assert f"kvatlas_indexer_lag_events {sum(range(1, 100))}.0" in lines
    assert "kvatlas_indexer_lag_ms_max 70.0" in lines
    assert 'kvatlas_indexer_worker_lag_events{worker="99/0"} 99.0' in lines
    assert 'kvatlas_indexer_worker_lag_ms{worker="99/0"} 70.0' in lines
    named = [line for line in lines if line.startswith("kvatlas_indexer_worker_lag_events{")]
    assert len(named) == LAGGING_NAMED


def test_who_is_out_for_lack_of_memory_is_on_the_page() -> None:
    bench = Bench(memory_bytes_max=600_000)
    bench.feed(Speaker(1).events(store(1)), Speaker(2).events(store(*range(1_000, 60_000))))
    registry = CollectorRegistry()
    CellCollector(bench.cell, registry)
    lines = generate_latest(registry).decode().splitlines()
    assert 'kvatlas_indexer_workers{state="over_budget"} 0.0' in lines
    bench.pass_ms(100)
    lines = generate_latest(registry).decode().splitlines()
    assert 'kvatlas_indexer_workers{state="over_budget"} 1.0' in lines
    assert "kvatlas_indexer_workers_over_budget_total 1.0" in lines
    assert any(line.startswith('kvatlas_indexer_index_bytes{part="idle"}') for line in lines)
