"""Metrics under vLLM's names, read from the ranks when they are asked for.

What vLLM has no name for is `kvatlas_mock_engine_…`.
"""

from collections.abc import Iterable

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
    """The registry of one engine, and what is observed request by request."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._model = engine.settings.model
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN_BUCKETS_S
        )
        self._request = self._histogram(
            "e2e_request_latency_seconds", "Arrival to last token.", _REQUEST_BUCKETS_S
        )
        self._between = self._histogram(
            "inter_token_latency_seconds", "From a token to the next.", _TOKEN_BUCKETS_S
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
        """Begin at 0, as a restarted process; a scrape before any request shows them all, empty."""
        histograms = (self._first_token, self._request, self._between)
        for metric in (*histograms, self._success):
            metric.clear()
        for rank in range(self._ranks):
            for histogram in histograms:
                histogram.labels(self._model, str(rank))
            for reason in ("stop", "length"):
                self._success.labels(self._model, str(rank), reason)

    def first_token(self, rank: int, seconds: float) -> None:
        """A request got its first token."""
        self._first_token.labels(self._model, str(rank)).observe(seconds)

    def next_token(self, rank: int, seconds: float) -> None:
        """A request got another token."""
        self._between.labels(self._model, str(rank)).observe(seconds)

    def finished(self, rank: int, seconds: float, reason: str) -> None:
        """A request got its last token."""
        self._success.labels(self._model, str(rank), reason).inc()
        self._request.labels(self._model, str(rank)).observe(seconds)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self.registry)


class _RanksCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        settings = self._engine.settings
        for kind, name, text, value in _FIGURES:
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


def _running(rank: Rank) -> float:
    return len(rank.scheduler.running)


def _waiting(rank: Rank) -> float:
    return len(rank.scheduler.waiting)


def _usage(rank: Rank) -> float:
    return rank.scheduler.cache.usage


def _queried(rank: Rank) -> float:
    return rank.scheduler.counters.queried_tokens


def _hit(rank: Rank) -> float:
    return rank.scheduler.counters.hit_tokens


def _prompt(rank: Rank) -> float:
    return rank.scheduler.counters.prompt_tokens


def _generated(rank: Rank) -> float:
    return rank.scheduler.counters.generated_tokens


def _preemptions(rank: Rank) -> float:
    return rank.scheduler.counters.preemptions


def _evictions(rank: Rank) -> float:
    return rank.scheduler.cache.evictions


_FIGURES = (
    (GaugeMetricFamily, "vllm:num_requests_running", "Requests in the batch.", _running),
    (GaugeMetricFamily, "vllm:num_requests_waiting", "Requests that wait.", _waiting),
    (GaugeMetricFamily, "vllm:kv_cache_usage_perc", "Used KV cache. 1 means 100 percent.", _usage),
    (CounterMetricFamily, "vllm:prefix_cache_queries", "Tokens looked up.", _queried),
    (CounterMetricFamily, "vllm:prefix_cache_hits", "Tokens found cached.", _hit),
    (CounterMetricFamily, "vllm:prompt_tokens", "Prompt tokens admitted.", _prompt),
    (CounterMetricFamily, "vllm:generation_tokens", "Tokens generated.", _generated),
    (CounterMetricFamily, "vllm:num_preemptions", "Requests preempted.", _preemptions),
    (
        CounterMetricFamily,
        "kvatlas_mock_engine_evicted_blocks",
        "Cached blocks taken for other content.",
        _evictions,
    ),
)
