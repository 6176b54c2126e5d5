"""Metrics that a service reads from its own state at each scrape."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class ScrapedMetrics(Collector):
    """Calls `read` at each scrape of the registry."""

    def __init__(self, read: Callable[[], Iterable[Metric]], registry: CollectorRegistry) -> None:
        self._read = read
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Read the metrics."""
        return self._read()


def labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    """Return a metric with `labels`; each sample has a value per label, and its own value."""
    metric = kind(name, text, labels=labels)
    for values, value in samples:
        metric.add_metric(values, value)
    return metric
