"""The time of a routing decision, in this process: the shipped policy on a made-up fleet.

The context is filled beforehand, as the prepare plugins leave it. A decision then is what
`SingleDispatch.plan` does: filters, scorers and picker, and counting the request on its worker.
"""

import os
import time
from collections.abc import Mapping
from statistics import median
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry

from kvatlas_client import Load, Matches, WorkerKey, WorkerState
from kvatlas_frontend.api.body import OpaquePrompt, ParsedBody, Prompt
from kvatlas_frontend.assembly import single_dispatch
from kvatlas_frontend.fleet.models import ModelRoute
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord
from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.routing.check import check
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Services
from kvatlas_frontend.routing.plugins import built_in
from kvatlas_frontend.routing.profile import Profile, load_profile
from kvatlas_frontend.routing.slots import (
    CHUNK_HASHES,
    MATCHES,
    REQUEST,
    TOKENS,
    MatchedDepths,
    RoutingRequest,
)
from kvatlas_frontend.routing.slots import Tokens as TokenSlot
from kvatlas_frontend.routing.workflow import SingleDispatch
from kvatlas_frontend.tokens.prompt_tokenizer import PromptTokens
from kvatlas_loadtest.bench.cell import BLOCK_SIZE
from kvatlas_loadtest.bench.processes import Cores

_BATCHES = 20
_IN_FLIGHT = 64


class _Unused:
    """Stands in for the tokenizer and the indexers, which a decision does not ask."""

    async def tokens(self, prompt: Prompt, model: str) -> PromptTokens:
        raise NotImplementedError

    async def find(self, chunk_hashes: object, *, limit: int, deadline_ms: float) -> Matches:
        raise NotImplementedError


EVERY_FILTER: Final = {
    "name": "every-filter",
    "prepare": ["tokens", "chunk-hashes", "matches"],
    "filter": [
        "available",
        "serves-model",
        {"role": {"roles": [""]}},
        {"label": {"name": "zone", "values": ["a", "b"]}},
        {"concurrency-cap": {"requests": 256}},
        "saturation",
        "imbalance",
        "deviation",
        "prefix-affinity",
    ],
    "score": ["cache-affinity", "least-load", "kv-usage"],
    "pick": "highest-score",
}
"""A profile with all filters and three scorers."""


def decide_us(
    workers: int, *, decisions: int, policy: str | Mapping[str, object] = "kv-aware"
) -> float:
    """Median time of a decision among so many workers, in microseconds.

    `policy`: a policy's name, or a profile's document.
    """
    fleet = Fleet()
    records = tuple(
        WorkerRecord(
            WorkerKey(number, 0),
            WorkerState.LIVE,
            1,
            "http://127.0.0.1:1",
            load=Load(0, 0, 0.0),
            labels={"zone": "ab"[number % 2]},
        )
        for number in range(workers)
    )
    fleet.apply(FleetChange(full=True, workers=records, removed=()))
    services = Services(
        fleet=fleet,
        tokens=_Unused(),
        matches=_Unused(),
        block_size=BLOCK_SIZE,
        deadline_ms=100.0,
        now_s=time.monotonic,
    )
    document = load_profile(policy) if isinstance(policy, str) else Profile.model_validate(policy)
    profile = check(document, built_in())
    dispatch = single_dispatch(profile, services, FrontendMetrics(CollectorRegistry()))
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, Cores.split().measured)
    try:
        return _timed(dispatch, fleet, _context(fleet), decisions)
    finally:
        os.sched_setaffinity(0, usable)


def _context(fleet: Fleet) -> RoutingContext:
    """A prompt of 8,000 tokens, of which up to 64 workers hold a part."""
    body = ParsedBody(None, stream=True, cache_salt=None, prompt=OpaquePrompt(), batch=False)
    context = RoutingContext()
    context[REQUEST] = RoutingRequest(body, ModelRoute("bench", None, None))
    context[TOKENS] = TokenSlot(np.arange(8_000, dtype=np.uint32), whole=True)
    depths = np.zeros(fleet.columns.rows, dtype=np.int64)
    depths[: min(64, len(fleet))] = np.arange(min(64, len(fleet)))
    context[MATCHES] = MatchedDepths(depths)
    context[CHUNK_HASHES] = np.arange(8_000 // BLOCK_SIZE, dtype=np.uint64)
    return context


def _timed(
    dispatch: SingleDispatch, fleet: Fleet, context: RoutingContext, decisions: int
) -> float:
    """Requests end in batches outside the measured time."""
    times_us: list[float] = []
    for _ in range(max(_BATCHES, decisions // _IN_FLIGHT)):
        began = time.perf_counter()
        plans = [dispatch.plan(context, frozenset()) for _ in range(_IN_FLIGHT)]
        times_us.append((time.perf_counter() - began) / _IN_FLIGHT * 1e6)
        for plan in plans:
            if plan is not None:
                fleet.release(plan.ticket)
    return median(times_us)
