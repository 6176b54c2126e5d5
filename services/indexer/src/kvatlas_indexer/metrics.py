"""The cell's counts on the metrics page, read when the page is; the cell keeps them natively."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvatlas_indexer.feed import Feed, LogFeed
from kvatlas_indexer.recovery import Outcome, Recovery
from kvatlas_indexer.snapshots import StateFiles
from kvatlas_indexer.start import Source, Start
from kvatlas_native import Cell

PREFIX = "kvatlas_indexer_"
LAGGING_NAMED = 32
"""Workers with lag figures of their own on a page: those furthest behind, so labels stay few."""

_NAME = re.compile(r'(?P<what>\w+)(?:\{(?P<label>\w+)="(?P<value>[^"]*)"\})?')


class CellCollector(Collector):
    """Hands the cell's counters, gauges and histograms to Prometheus under our prefix."""

    def __init__(self, cell: Cell, registry: CollectorRegistry) -> None:
        self._cell = cell
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: the cell names its counts itself."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Read the cell once."""
        for what, (label, values) in _families(self._cell.counters()).items():
            counter = CounterMetricFamily(PREFIX + what, _text(what), labels=label)
            for value, count in values:
                counter.add_metric(value, count)
            yield counter
        for what, (label, values) in _families(self._cell.gauges()).items():
            gauge = GaugeMetricFamily(PREFIX + what, _text(what), labels=label)
            for value, level in values:
                gauge.add_metric(value, level)
            yield gauge
        for what, (bounds, counts, sum_s) in self._cell.histograms().items():
            histogram = HistogramMetricFamily(PREFIX + what, _text(what))
            bounds_text = [f"{bound:g}" for bound in bounds] + ["+Inf"]
            buckets = list(zip(bounds_text, map(float, counts), strict=True))
            histogram.add_metric([], buckets, sum_s)
            yield histogram


class LagCollector(Collector):
    """How far behind workers are: all of them in sum, the furthest behind by name."""

    def __init__(
        self, cell: Cell, registry: CollectorRegistry, *, unix_ms: Callable[[], int]
    ) -> None:
        self._cell = cell
        self._unix_ms = unix_ms
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Read the cell once."""
        lags = self._cell.lags(LAGGING_NAMED, self._unix_ms())
        sums = {
            "workers_lagging": ("Workers that lack events known to exist.", lags.workers),
            "lag_events": ("Events known to exist and not applied, of all workers.", lags.events),
            "lag_ms_max": ("Longest time any worker has lacked events, ms.", lags.ms_max),
        }
        for name, (text, value) in sums.items():
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        labels = ["worker"]
        events = GaugeMetricFamily(
            PREFIX + "worker_lag_events", "Events not applied, the furthest behind.", labels=labels
        )
        ms = GaugeMetricFamily(
            PREFIX + "worker_lag_ms",
            "Time without progress, the furthest behind, ms.",
            labels=labels,
        )
        for worker_id, dp_rank, behind, waited_ms in lags.most:
            worker = f"{worker_id}/{dp_rank}"
            events.add_metric([worker], behind)
            ms.add_metric([worker], waited_ms)
        yield events
        yield ms


class ReplicaCollector(Collector):
    """How the replica started, and how it keeps its state for the next start."""

    def __init__(self, start: Start, files: StateFiles | None, registry: CollectorRegistry) -> None:
        self._start = start
        self._files = files
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Read both once."""
        source = GaugeMetricFamily(
            PREFIX + "start", "1 for where the first state came from.", labels=["source"]
        )
        for each in Source:
            source.add_metric([each.value], int(self._start.source is each))
        yield source
        yield _by_reason(
            "start_peers_passed_over", "Peers not started from.", self._start.peers_passed_over
        )
        files = self._files
        if files is None:
            return
        yield _by_reason("state_files_passed_over", "Files not started from.", files.refused)
        yield CounterMetricFamily(PREFIX + "state_files_written", "Kept.", value=files.written)
        yield CounterMetricFamily(PREFIX + "state_files_failed", "Not kept.", value=files.failed)
        yield GaugeMetricFamily(
            PREFIX + "state_file_bytes", "Of the newest written.", value=files.newest_bytes
        )
        if files.newest_unix_ms is not None:
            yield GaugeMetricFamily(
                PREFIX + "state_file_unix_seconds",
                "When the newest was written.",
                value=files.newest_unix_ms / 1000,
            )


class RecoveryCollector(Collector):
    """How often publishers were asked for what this replica lacked, and how that ended."""

    def __init__(self, recovery: Recovery, registry: CollectorRegistry) -> None:
        self._recovery = recovery
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Read the recovery once."""
        attempts = CounterMetricFamily(
            PREFIX + "recovery_attempts", "Publishers asked, by outcome.", labels=["outcome"]
        )
        for outcome in Outcome:
            attempts.add_metric([outcome.value], self._recovery.attempts[outcome])
        yield attempts
        yield GaugeMetricFamily(
            PREFIX + "recovery_attempts_running", "Under way.", value=self._recovery.running
        )


class ProbeCollector(Collector):
    """Whether logs take what is appended, shown by this replica's own probes."""

    def __init__(self, feeds: Sequence[Feed], registry: CollectorRegistry) -> None:
        self._feeds = feeds
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Read the probes once."""
        labels = ["transport"]
        age = GaugeMetricFamily(
            PREFIX + "log_probe_age_ms",
            "Since the newest probe was appended that has come back, ms.",
            labels=labels,
        )
        failures = CounterMetricFamily(
            PREFIX + "log_probes_refused", "Probes that a log did not take.", labels=labels
        )
        for feed in self._feeds:
            if isinstance(feed, LogFeed) and feed.probe is not None:
                age.add_metric([feed.transport], feed.probe.age_s * 1_000)
                failures.add_metric([feed.transport], feed.probe.failures)
        yield age
        yield failures


def _families(
    counts: Mapping[str, int],
) -> dict[str, tuple[list[str], list[tuple[list[str], int]]]]:
    """Group `what{label="value"}` by `what`: its label's name, if any, and each value's count."""
    labels: dict[str, list[str]] = {}
    values: dict[str, list[tuple[list[str], int]]] = defaultdict(list)
    for name, count in counts.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"the cell has a count of an unreadable name: {name!r}")
        what, label, value = match.group("what", "label", "value")
        labels[what] = [label] if label is not None else []
        values[what].append(([value] if label is not None else [], count))
    return {what: (labels[what], values[what]) for what in labels}


def _by_reason(name: str, text: str, counts: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, text, labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([reason], count)
    return family


def _text(what: str) -> str:
    return what.replace("_", " ")
