"""The cell's counts on the metrics page."""

from functools import partial
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from kvatlas_chassis.metrics import ScrapedMetrics
from kvatlas_indexer.metrics import LAGGING_NAMED, cell_metrics, lag_metrics
from kvatlas_native import Cell
from tests.unit.cell.bench import Bench
from tests.unit.cell.record_source import RecordSource, store


class ScriptedCell:
    """Answers with fixed values."""

    def counters(self) -> dict[str, int]:
        return {'records{reason="seen"}': 2, 'records{reason="older_epoch"}': 0, "events": 7}

    def gauges(self) -> dict[str, int]:
        return {"memberships": 9}

    def histograms(self) -> dict[str, tuple[list[float], list[int], float]]:
        return {"find_seconds": ([1e-6, 2e-6], [1, 3, 4], 0.5)}


def test_names_labels_and_buckets_are_those_of_the_cell_under_our_prefix() -> None:
    registry = CollectorRegistry()
    ScrapedMetrics(partial(cell_metrics, cast("Cell", ScriptedCell())), registry)
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


def test_lag_is_shown_in_sum_and_by_name_for_the_furthest_behind() -> None:
    bench = Bench()
    for worker_id in range(1, 100):
        source = RecordSource(worker_id=worker_id)
        bench.feed(source.events(store(1)), source.heartbeat(last=1 + worker_id))
    registry = CollectorRegistry()
    ScrapedMetrics(partial(lag_metrics, bench.cell, lambda: bench.now_ms + 70), registry)
    lines = generate_latest(registry).decode().splitlines()
    assert "kvatlas_indexer_workers_lagging 99.0" in lines
    assert f"kvatlas_indexer_lag_events {sum(range(1, 100))}.0" in lines
    assert "kvatlas_indexer_lag_ms_max 70.0" in lines
    assert 'kvatlas_indexer_worker_lag_events{worker="99/0"} 99.0' in lines
    assert 'kvatlas_indexer_worker_lag_ms{worker="99/0"} 70.0' in lines
    named = [line for line in lines if line.startswith("kvatlas_indexer_worker_lag_events{")]
    assert len(named) == LAGGING_NAMED


def test_an_evicted_worker_is_on_the_page() -> None:
    bench = Bench(memory_bytes_max=600_000)
    bench.feed(
        RecordSource(1).events(store(1)), RecordSource(2).events(store(*range(1_000, 60_000)))
    )
    registry = CollectorRegistry()
    ScrapedMetrics(partial(cell_metrics, bench.cell), registry)
    lines = generate_latest(registry).decode().splitlines()
    assert 'kvatlas_indexer_workers{state="over_budget"} 0.0' in lines
    bench.pass_ms(100)
    lines = generate_latest(registry).decode().splitlines()
    assert 'kvatlas_indexer_workers{state="over_budget"} 1.0' in lines
    assert "kvatlas_indexer_workers_over_budget_total 1.0" in lines
    assert any(line.startswith('kvatlas_indexer_index_bytes{part="idle"}') for line in lines)
