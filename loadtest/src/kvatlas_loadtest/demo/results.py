"""Turns outcomes into figures: one summary per policy, and the JSON file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvatlas_loadtest.cache_model import Hits
from kvatlas_loadtest.demo.plan import Plan
from kvatlas_loadtest.demo.replay import Outcome
from kvatlas_loadtest.prometheus import Histogram


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy's run.

    Attributes:
        errors: requests whose answer did not arrive completely.
        hits: by the engines' own `cached_tokens`, over the answered requests.
        evictions: blocks that the engines evicted.
        ttft_ms: p50, p95, p99; None: no request was answered.
        routing_ms: p50, p99 of the time that the frontends took to route a request.
        fallbacks: requests routed without an indexer's answer.
    """

    requests: int
    errors: int
    hits: Hits
    evictions: int
    ttft_ms: Mapping[str, float | None]
    routing_ms: Mapping[str, float | None]
    fallbacks: int
    first_error: str | None


def summarize(
    plan: Plan,
    outcomes: Sequence[Outcome],
    *,
    block_size: int,
    evictions: int,
    fallbacks: int,
    routing_s: Histogram,
) -> Summary:
    """Compute the figures of one run."""
    pairs = list(zip(plan.requests, outcomes, strict=True))
    answered = [(request, outcome) for request, outcome in pairs if outcome.error is None]
    ttfts = [outcome.ttft_ms for _, outcome in answered if outcome.ttft_ms is not None]
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    return Summary(
        requests=len(outcomes),
        errors=len(errors),
        hits=Hits(
            hit_blocks=sum(outcome.cached_tokens // block_size for _, outcome in answered),
            blocks=sum(len(request.blocks.blocks) for request, _ in answered),
        ),
        evictions=evictions,
        ttft_ms=_percentiles(ttfts, (50, 95, 99)),
        routing_ms={
            name: None if seconds is None else seconds * 1_000
            for name, seconds in (
                ("p50", routing_s.quantile(0.50)),
                ("p99", routing_s.quantile(0.99)),
            )
        },
        fallbacks=fallbacks,
        first_error=errors[0] if errors else None,
    )


def _percentiles(values: Sequence[float], percents: Sequence[int]) -> dict[str, float | None]:
    if not values:
        return {f"p{percent}": None for percent in percents}
    found = np.percentile(np.array(values), percents)
    return {f"p{p}": float(v) for p, v in zip(percents, found, strict=True)}


def document(plan: Plan, engines: int, policies: Mapping[str, Summary]) -> dict[str, Any]:
    """The contents of `--json FILE`."""
    return {
        "trace": plan.trace.name,
        "requests": len(plan.requests),
        "engines": engines,
        "infinite_cache_hit_ratio": round(plan.infinite.ratio, 6),
        "settings": {
            "blocks_per_engine": plan.capacity.blocks_per_engine,
            "blocks_stored": plan.capacity.blocks_stored,
            "tokens_per_id": plan.tokens_per_id,
            "speedup": plan.speedup,
            "engine_speedup": plan.engine_speedup,
            "output_scale": plan.output_scale,
        },
        "policies": {
            name: {
                "requests": summary.requests,
                "errors": summary.errors,
                "hit_ratio": round(summary.hits.ratio, 6),
                "ttft_ms": _rounded(summary.ttft_ms),
                "routing_ms": _rounded(summary.routing_ms),
                "evictions": summary.evictions,
                "fallbacks": summary.fallbacks,
            }
            for name, summary in policies.items()
        },
    }


def _rounded(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 3) for name, value in figures.items()}
