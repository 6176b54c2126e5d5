"""All metrics of the frontend. The values of each label are a closed set."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvatlas_native import CacheStats

STAGES: Final = ("tokenize", "hash", "find", "choose", "total")

_CACHE_BYTES: Final = "kvatlas_frontend_conversation_cache_bytes"
SUMMED_GAUGES: Final = frozenset({"kvatlas_frontend_requests_in_flight", _CACHE_BYTES})
"""Gauges that add up over the processes of a frontend; of others the highest value counts."""

_ROUTING_BUCKETS_S = (
    20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.5, 2.0,
)  # fmt: skip
_PLUGIN_BUCKETS_S = (2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 500e-6, 5e-3, 50e-3, 0.5)
_FIRST_BYTE_BUCKETS_S = (
    1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
READ_BY: Final = (
    ("native", "none"),
    *(("python", why) for why in ("off", "body", "tokenizer", "template", "too_long")),
)


class ConversationCacheMetrics(Collector):
    """Reads the counts of the conversation cache when they are asked for."""

    def __init__(self) -> None:
        # None: there is no cache.
        self.stats: Callable[[], CacheStats | None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        stats = self.stats()
        text = CounterMetricFamily(
            "kvatlas_frontend_conversation_cache_text_bytes",
            "Bytes of prompts whose tokens were in the conversation cache (hit), or were not (miss)",
            labels=["result"],
        )
        text.add_metric(["hit"], 0 if stats is None else stats.hit_bytes)
        text.add_metric(["miss"], 0 if stats is None else stats.miss_bytes)
        yield text
        bytes_used = 0 if stats is None else stats.bytes
        yield GaugeMetricFamily(
            _CACHE_BYTES, "Memory of the conversation cache, in bytes", value=bytes_used
        )


class FrontendMetrics:
    """The metrics of one frontend process. Labels are resolved once, not on every request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.conversation_cache = ConversationCacheMetrics()
        registry.register(self.conversation_cache)
        self.requests = Counter(
            "kvatlas_frontend_requests",
            "Requests answered; status 499: the client disconnected before its answer ended",
            ["route", "status"],
            registry=registry,
        )
        self.refused = Counter(
            "kvatlas_frontend_requests_refused",
            "Requests refused before any engine was asked, by reason",
            ["reason"],
            registry=registry,
        )
        self.decisions = Counter(
            "kvatlas_frontend_decisions",
            "Routing decisions, by x-kvatlas-reason",
            ["reason"],
            registry=registry,
        )
        self.fallbacks = Counter(
            "kvatlas_frontend_fallbacks",
            "Requests routed by load because the indexers or the tokenizer failed, by reason",
            ["reason"],
            registry=registry,
        )
        self.prompts_unrendered = Counter(
            "kvatlas_frontend_prompts_unrendered",
            "Requests routed by load because only the engine knows their prompt, by reason",
            ["reason"],
            registry=registry,
        )
        self.indexer_calls_skipped = Counter(
            "kvatlas_frontend_indexer_calls_skipped",
            "Requests routed by load without asking the indexers, whose last calls had no answer",
            registry=registry,
        )
        self.attempts_failed = Counter(
            "kvatlas_frontend_attempts_failed",
            "Attempts that got no answer from an engine, by reason",
            ["reason"],
            registry=registry,
        )
        self.retries = Counter(
            "kvatlas_frontend_retries",
            "Requests sent to another worker after one failed before its first byte",
            registry=registry,
        )
        self.streams_broken = Counter(
            "kvatlas_frontend_streams_broken",
            "Answers whose engine died after the first byte",
            registry=registry,
        )
        self._counted: dict[tuple[str, int], Counter] = {}
        self.in_flight = Gauge(
            "kvatlas_frontend_requests_in_flight",
            "Requests being served now",
            registry=registry,
        )
        stage = Histogram(
            "kvatlas_frontend_routing_seconds",
            "Time to route a request, by stage; total: from the body's last byte to the decision",
            ["stage"],
            buckets=_ROUTING_BUCKETS_S,
            registry=registry,
        )
        self.routing_seconds = {name: stage.labels(name) for name in STAGES}
        self._plugin_seconds = Histogram(
            "kvatlas_frontend_plugin_seconds",
            "Time of each plugin of the policy, by kind and name; filters, scorers and pickers are "
            "timed in one of 16 choices",
            ["kind", "plugin"],
            buckets=_PLUGIN_BUCKETS_S,
            registry=registry,
        )
        self.first_byte = Histogram(
            "kvatlas_frontend_first_byte_seconds",
            "Time from a request's arrival to the first byte of its answer",
            buckets=_FIRST_BYTE_BUCKETS_S,
            registry=registry,
        )
        self.prompts_read = Counter(
            "kvatlas_frontend_prompts_read",
            "Prompts read by the data plane (native), or left to Python, by reason",
            ["by", "reason"],
            registry=registry,
        )
        self._read = {reason: self.prompts_read.labels(*reason) for reason in READ_BY}
        self.chat_template = Gauge(
            "kvatlas_frontend_chat_template",
            "1 for what renders conversations: native, python or engine",
            ["by"],
            registry=registry,
        )
        self.prompts_compared = Counter(
            "kvatlas_frontend_prompts_compared",
            "Prompts by the engine's token count: equal to the frontend's, or drift",
            ["result"],
            registry=registry,
        )
        self.promises = Counter(
            "kvatlas_frontend_promises",
            "Requests by the engine's cached_tokens: the promised depth was kept, or fell short",
            ["result"],
            registry=registry,
        )
        self.promised_blocks = Counter(
            "kvatlas_frontend_promised_blocks",
            "Blocks held by the chosen workers, by the indexers' answers",
            registry=registry,
        )
        self.cached_blocks = Counter(
            "kvatlas_frontend_cached_blocks",
            "Blocks that the engines reported as cached for the same requests",
            registry=registry,
        )
        self.workers = Gauge(
            "kvatlas_frontend_workers",
            "Known workers, by the state that the indexers report",
            ["state"],
            registry=registry,
        )
        self.probes_failed = Counter(
            "kvatlas_frontend_probes_failed",
            "Health checks of stale or failing engines that got no answer",
            registry=registry,
        )
        self.watch_errors = Counter(
            "kvatlas_frontend_watch_errors",
            "Interruptions of the indexers' stream of workers, by reason",
            ["reason"],
            registry=registry,
        )
        self.tokenizer = Gauge(
            "kvatlas_frontend_tokenizer",
            "1 for the tokenizer in use",
            ["name"],
            registry=registry,
        )

    def plugin_timer(self, kind: str, plugin: str) -> Histogram:
        """The histogram of a plugin's time; the profile in use bounds the number of plugins."""
        return self._plugin_seconds.labels(kind, plugin)

    def count_prompt_read(self, by: str, reason: str) -> None:
        """Count a prompt by who read it, and why that was not the data plane."""
        self._read[by, reason].inc()

    def count_request(self, route: str, status: int) -> None:
        """Count an answered request; resolving labels costs more than counting."""
        counter = self._counted.get((route, status))
        if counter is None:
            counter = self._counted[route, status] = self.requests.labels(route, str(status))
        counter.inc()
