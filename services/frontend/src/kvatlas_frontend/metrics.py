"""The frontend's metrics, all in one place; label values are closed sets."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

STAGES: Final = ("tokenize", "hash", "find", "choose", "total")
ROUTES: Final = ("completions", "chat", "models", "health", "other")

_ROUTING_BUCKETS_S = (
    20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.5, 2.0,
)  # fmt: skip
_FIRST_BYTE_BUCKETS_S = (
    1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


class FrontendMetrics:
    """Owns every metric of one frontend process; children are resolved once, off the hot path."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "kvatlas_frontend_requests",
            "Answered requests; status 499: the client left before its answer ended",
            ["route", "status"],
            registry=registry,
        )
        self.refused = Counter(
            "kvatlas_frontend_requests_refused",
            "Requests that no engine was asked for, by reason",
            ["reason"],
            registry=registry,
        )
        self.decisions = Counter(
            "kvatlas_frontend_decisions",
            "Choices of a worker, by x-kvatlas-reason",
            ["reason"],
            registry=registry,
        )
        self.fallbacks = Counter(
            "kvatlas_frontend_fallbacks",
            "Requests routed by load because something failed to answer, by reason",
            ["reason"],
            registry=registry,
        )
        self.attempts_failed = Counter(
            "kvatlas_frontend_attempts_failed",
            "Attempts that an engine failed, by what happened",
            ["reason"],
            registry=registry,
        )
        self.retries = Counter(
            "kvatlas_frontend_retries",
            "Requests offered to another worker after one failed before its first byte",
            registry=registry,
        )
        self.streams_broken = Counter(
            "kvatlas_frontend_streams_broken",
            "Answers whose engine died after the first byte",
            registry=registry,
        )
        self.in_flight = Gauge(
            "kvatlas_frontend_requests_in_flight",
            "Requests being served now",
            registry=registry,
        )
        stage = Histogram(
            "kvatlas_frontend_routing_seconds",
            "Time to route a request, by stage; total: from its last byte to the choice",
            ["stage"],
            buckets=_ROUTING_BUCKETS_S,
            registry=registry,
        )
        self.stage = {name: stage.labels(name) for name in STAGES}
        self.first_byte = Histogram(
            "kvatlas_frontend_first_byte_seconds",
            "From the request's arrival to the first byte of its answer",
            buckets=_FIRST_BYTE_BUCKETS_S,
            registry=registry,
        )
        self.prompts_compared = Counter(
            "kvatlas_frontend_prompts_compared",
            "Prompts whose token count an engine reported back: equal, or drift",
            ["result"],
            registry=registry,
        )
        self.promises = Counter(
            "kvatlas_frontend_promises",
            "Promised depths compared with an engine's cached_tokens: kept, or short",
            ["result"],
            registry=registry,
        )
        self.promised_blocks = Counter(
            "kvatlas_frontend_promised_blocks",
            "Blocks that an indexer said the chosen worker holds, where the engine reported back",
            registry=registry,
        )
        self.cached_blocks = Counter(
            "kvatlas_frontend_cached_blocks",
            "Blocks that the engines then reported as cached",
            registry=registry,
        )
        self.workers = Gauge(
            "kvatlas_frontend_workers",
            "Workers known, by state as the indexers tell it",
            ["state"],
            registry=registry,
        )
        self.probes_failed = Counter(
            "kvatlas_frontend_probes_failed",
            "Probes of stale or failing engines that found nobody",
            registry=registry,
        )
        self.watch_errors = Counter(
            "kvatlas_frontend_watch_errors",
            "Times the stream of workers ended with an error, by reason",
            ["reason"],
            registry=registry,
        )
        self.tokenizer = Gauge(
            "kvatlas_frontend_tokenizer",
            "1 for the tokenizer in use",
            ["name"],
            registry=registry,
        )
