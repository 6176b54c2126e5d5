"""Metrics under vLLM's names, read from the ranks at each scrape.

Metrics that vLLM does not have begin with `kvatlas_mock_engine_`.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvatlas_mocker.engine import Engine
from kvatlas_mocker.rank import Rank

_LABELS = ("model_name", "engine")
_FIRST_TOKEN_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_REQUEST_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKEN_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)


class EngineMetrics:
    """The registry of one engine, and the metrics that are recorded per request."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._model = engine.settings.model
        self._first_token = self._histogram(
            "time_to_first_token_seconds",
            "Time from arrival to first token, seconds.",
            _FIRST_TOKEN_BUCKETS_S,
        )
        self._request = self._histogram(
            "e2e_request_latency_seconds",
            "Time from arrival to last token, seconds.",
            _REQUEST_BUCKETS_S,
        )
        self._between = self._histogram(
            "inter_token_latency_seconds",
            "Time from one token to the next, seconds.",
            _TOKEN_BUCKETS_S,
        )
        self._success = Counter(
            "vllm:request_success",
            "Requests that got all their tokens.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._ranks = len(engine.ranks)
        self.registry.register(_RanksCollector(engine))
        self.reset()

    def reset(self) -> None:
        """Set all to 0, as a restarted process does; a scrape then shows each metric, empty."""
        histograms = (self._first_token, self._request, self._between)
        for metric in (*histograms, self._success):
            metric.clear()
        for rank in range(self._ranks):
            for histogram in histograms:
                histogram.labels(self._model, str(rank))
            for reason in ("stop", "length"):
                self._success.labels(self._model, str(rank), reason)

    def first_token(self, rank: int, seconds: float) -> None:
        """Record a request's first token."""
        self._first_token.labels(self._model, str(rank)).observe(seconds)

    def next_token(self, rank: int, seconds: float) -> None:
        """Record a further token of a request."""
        self._between.labels(self._model, str(rank)).observe(seconds)

    def finished(self, rank: int, seconds: float, reason: str) -> None:
        """Record a request's last token."""
        self._success.labels(self._model, str(rank), reason).inc()
        self._request.labels(self._model, str(rank)).observe(seconds)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self.registry)


class _RanksCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        settings = self._engine.settings
        for kind, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, (text, value) in metrics.items():
                family = kind(name, text, labels=_LABELS)
                for rank in self._engine.ranks:
                    family.add_metric((settings.model, str(rank.index)), value(rank))
                yield family
        facts = {
            "block_size": str(settings.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(settings.blocks),
            "prefix_caching_hash_algo": "sha256",
        }
        labels = ("model_name", "engine", *facts)
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=labels
        )
        for rank in self._engine.ranks:
            info.add_metric((settings.model, str(rank.index), *facts.values()), 1)
        yield info


_RankMetrics: TypeAlias = dict[str, tuple[str, Callable[[Rank], float]]]

_GAUGES: _RankMetrics = {
    "vllm:num_requests_running": ("Requests in the batch.", lambda r: len(r.scheduler.running)),
    "vllm:num_requests_waiting": ("Requests that wait.", lambda r: len(r.scheduler.waiting)),
    "vllm:kv_cache_usage_perc": (
        "Used KV cache. 1 means 100 percent.",
        lambda r: r.scheduler.cache.usage,
    ),
}
_COUNTERS: _RankMetrics = {
    "vllm:prefix_cache_queries": (
        "Prompt tokens looked up in the cache.",
        lambda r: r.scheduler.counters.queried_tokens,
    ),
    "vllm:prefix_cache_hits": (
        "Prompt tokens found in the cache.",
        lambda r: r.scheduler.counters.hit_tokens,
    ),
    "vllm:prompt_tokens": ("Prompt tokens admitted.", lambda r: r.scheduler.counters.prompt_tokens),
    "vllm:generation_tokens": (
        "Tokens generated.",
        lambda r: r.scheduler.counters.generated_tokens,
    ),
    "vllm:num_preemptions": ("Requests preempted.", lambda r: r.scheduler.counters.preemptions),
    "kvatlas_mock_engine_evicted_blocks": (
        "Cached blocks that were evicted.",
        lambda r: r.scheduler.cache.evictions,
    ),
}
