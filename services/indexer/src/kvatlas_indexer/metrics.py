"""The cell's counts on the metrics page, read when the page is; the cell keeps them natively."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvatlas_indexer.recovery import Outcome, Recovery
from kvatlas_native import Cell

PREFIX = "kvatlas_indexer_"

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


def _text(what: str) -> str:
    return what.replace("_", " ")
