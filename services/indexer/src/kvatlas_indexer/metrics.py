"""The metrics page. The cell keeps its counts natively; they are read with each page."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily as _Counter
from prometheus_client.core import GaugeMetricFamily as _Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from kvatlas_chassis.metrics import ScrapedMetrics, labelled
from kvatlas_indexer.logs.log_feed import Feed, LogFeed
from kvatlas_indexer.recovery import Outcome, Recovery
from kvatlas_indexer.state.files import StateFiles
from kvatlas_indexer.state.start import Source, Start
from kvatlas_native import Cell

PREFIX = "kvatlas_indexer_"
LAGGING_NAMED = 32
"""Workers with lag figures of their own: those furthest behind, so that labels stay few."""

_NAME = re.compile(r'(?P<what>\w+)(?:\{(?P<label>\w+)="(?P<value>[^"]*)"\})?')


def build_registry(
    cell: Cell, start: Start, files: StateFiles | None, unix_ms: Callable[[], int]
) -> CollectorRegistry:
    """Make the registry of everything that exists before the logs are opened."""
    registry = CollectorRegistry()
    ScrapedMetrics(partial(cell_metrics, cell), registry)
    ScrapedMetrics(partial(lag_metrics, cell, unix_ms), registry)
    ScrapedMetrics(partial(replica_metrics, start, files), registry)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def cell_metrics(cell: Cell) -> Iterable[Metric]:
    """Read the cell's counters, gauges and histograms; the cell names them itself."""
    for kind, counts in ((_Counter, cell.counters()), (_Gauge, cell.gauges())):
        for what, (labels, samples) in _families(counts).items():
            yield labelled(kind, PREFIX + what, _text(what), labels, samples)
    for what, (bounds, counts, sum_s) in cell.histograms().items():
        histogram = HistogramMetricFamily(PREFIX + what, _text(what))
        bounds_text = [f"{bound:g}" for bound in bounds] + ["+Inf"]
        buckets = list(zip(bounds_text, map(float, counts), strict=True))
        histogram.add_metric([], buckets, sum_s)
        yield histogram


def lag_metrics(cell: Cell, unix_ms: Callable[[], int]) -> Iterable[Metric]:
    """Read how far workers are behind: all of them in sum, the furthest behind by name."""
    report = cell.lag_report(LAGGING_NAMED, unix_ms())
    for name, text, value in (
        ("workers_lagging", "Workers that lack events that are known to exist.", report.workers),
        (
            "lag_events",
            "Events that are known to exist and not applied, of all workers.",
            report.events,
        ),
        (
            "lag_ms_max",
            "Longest time of any worker without progress on missing events, ms.",
            report.ms_max,
        ),
    ):
        yield _Gauge(PREFIX + name, text, value=value)
    named = [
        (f"{worker}/{rank}", events, ms) for worker, rank, events, ms in report.furthest_behind
    ]
    yield _by_label(
        _Gauge,
        "worker_lag_events",
        "Missing events of the workers that are furthest behind.",
        worker={worker: events for worker, events, _ in named},
    )
    yield _by_label(
        _Gauge,
        "worker_lag_ms",
        "Time without progress of the workers that are furthest behind, ms.",
        worker={worker: ms for worker, _, ms in named},
    )


def replica_metrics(start: Start, files: StateFiles | None) -> Iterable[Metric]:
    """Read how the replica started, and how it saves its state for the next start."""
    yield _by_label(
        _Gauge,
        "start",
        "1 for the source of the first state: file, peer or log.",
        source={each.value: int(start.source is each) for each in Source},
    )
    yield _by_label(
        _Counter,
        "start_peers_passed_over",
        "Peers whose state could not be used, by reason.",
        reason=start.peers_skipped,
    )
    if files is None:
        return
    yield _by_label(
        _Counter,
        "state_files_passed_over",
        "State files that could not be used, by reason.",
        reason=files.unusable,
    )
    yield _Counter(PREFIX + "state_files_written", "State files written.", value=files.written)
    yield _Counter(
        PREFIX + "state_files_failed", "State files that could not be written.", value=files.failed
    )
    yield _Gauge(
        PREFIX + "state_file_bytes",
        "Size of the newest state file written, bytes.",
        value=files.newest_bytes,
    )
    if files.newest_unix_ms is not None:
        yield _Gauge(
            PREFIX + "state_file_unix_seconds",
            "Time at which the newest state file was written.",
            value=files.newest_unix_ms / 1000,
        )


def recovery_metrics(recovery: Recovery) -> Iterable[Metric]:
    """Read the attempts to recover workers from their publishers, by outcome."""
    yield _by_label(
        _Counter,
        "recovery_attempts",
        "Attempts to recover a worker from its publisher, by outcome.",
        outcome={outcome.value: recovery.attempts[outcome] for outcome in Outcome},
    )
    yield _Gauge(
        PREFIX + "recovery_attempts_running", "Attempts under way.", value=recovery.running
    )


def probe_metrics(feeds: Sequence[Feed]) -> Iterable[Metric]:
    """Read whether logs accept writes, as this replica's probes show."""
    probes = {
        feed.transport: feed.probe
        for feed in feeds
        if isinstance(feed, LogFeed) and feed.probe is not None
    }
    yield _by_label(
        _Gauge,
        "log_probe_age_ms",
        "Age of the newest probe that has come back, ms.",
        transport={name: probe.age_s * 1_000 for name, probe in probes.items()},
    )
    yield _by_label(
        _Counter,
        "log_probes_refused",
        "Probes that a log refused.",
        transport={name: probe.failures for name, probe in probes.items()},
    )


def _families(
    counts: Mapping[str, int],
) -> dict[str, tuple[list[str], list[tuple[list[str], int]]]]:
    """Group `what{label="value"}` by `what`: its label's name, if any, and each value's count."""
    labels: dict[str, list[str]] = {}
    values: dict[str, list[tuple[list[str], int]]] = defaultdict(list)
    for name, count in counts.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"the cell has a count with a malformed name: {name!r}")
        what, label, value = match.group("what", "label", "value")
        labels[what] = [label] if label is not None else []
        values[what].append(([value] if label is not None else [], count))
    return {what: (labels[what], values[what]) for what in labels}


def _by_label(
    kind: type[_Counter | _Gauge], name: str, text: str, **values: Mapping[str, float]
) -> Metric:
    """Return a metric with one label, the argument's name; its values are by label value."""
    ((label, by_value),) = values.items()
    samples = (([each], value) for each, value in by_value.items())
    return labelled(kind, PREFIX + name, text, [label], samples)


def _text(what: str) -> str:
    return what.replace("_", " ")
