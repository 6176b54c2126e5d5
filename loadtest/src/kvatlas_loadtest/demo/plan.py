"""Plans a run: every request and its time. The plan is the same for every policy."""

import json
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvatlas_chassis import SettingsError
from kvatlas_loadtest.arrivals import compress, smooth_arrivals, speedup_for
from kvatlas_loadtest.cache_model import (
    BlockNumbering,
    Capacity,
    Hits,
    PromptBlocks,
    capacity_for,
    infinite_cache_hits,
)
from kvatlas_loadtest.demo.options import Options
from kvatlas_loadtest.prompts import prompt_tokens, tokens_per_id_for
from kvatlas_loadtest.trace import TOKENS_PER_ID, Trace, TraceError, read_trace

MODEL = "kvatlas-demo"
"""Name of the model that the demo's fleet serves."""

PROMPT_TOKENS_MEAN = 2_000
OUTPUT_TOKENS_MEAN = 16
"""Mean lengths after scaling, so that a laptop's cores measure routing and not JSON."""

ENGINE_HEADROOM = 2.0
"""Factor by which the engines are less busy than in the recorded trace, at least."""

PREFILL_TOKEN_US = 60.0
"""Time that a real engine takes for an uncached token, in µs."""

_BUSY_SHARE_MAX = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRequest:
    """One request, ready to send.

    Attributes:
        at_s: time to send it, from the start of the run.
        body: the JSON of `POST /v1/completions`.
        tokens: the prompt, uint32[n].
        blocks: the prompt's full blocks, numbered as a cache tells them apart.
    """

    at_s: float
    body: bytes
    tokens: NDArray[np.uint32]
    blocks: PromptBlocks


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one run.

    Attributes:
        requests: ordered by time.
        infinite: hits of a cache that evicts nothing, over these requests.
        capacity: the size of the engines' caches.
        tokens_per_id: tokens that stand for `TOKENS_PER_ID` of the trace.
        speedup: factor by which the trace is played faster than recorded.
        output_scale: factor by which the answers are shorter than recorded.
        engine_speedup: factor by which a mock engine is faster than a real one.
    """

    trace: Trace
    requests: tuple[PlannedRequest, ...]
    infinite: Hits
    capacity: Capacity
    tokens_per_id: int
    speedup: float
    output_scale: float
    engine_speedup: float

    @property
    def lasts_s(self) -> float:
        """Time at which the last request is sent, from the start."""
        return self.requests[-1].at_s


def make_plan(options: Options) -> Plan:
    """Read the trace and turn it into requests.

    Raises:
        SettingsError: the trace cannot be played; one line.
    """
    try:
        trace = read_trace(options.trace, requests_max=options.requests)
    except TraceError as error:
        raise SettingsError(f"kvatlas demo: {error}") from None
    rows = trace.rows
    arrivals_ms = smooth_arrivals(
        [row.timestamp_ms for row in rows], rng=random.Random(options.seed)
    )
    speedup = options.speedup or speedup_for(arrivals_ms, rate=options.rate)
    tokens_per_id = options.tokens_per_id or tokens_per_id_for(
        rows, block_size=options.block_size, prompt_tokens_mean=PROMPT_TOKENS_MEAN
    )
    output_mean = sum(row.output_tokens for row in rows) / len(rows)
    output_scale = max(1.0, output_mean / OUTPUT_TOKENS_MEAN)
    numbering = BlockNumbering(options.block_size)
    requests: list[PlannedRequest] = []
    for row, at_s in zip(rows, compress(arrivals_ms, speedup=speedup), strict=True):
        tokens = prompt_tokens(row, tokens_per_id=tokens_per_id, seed=options.seed)
        output_tokens = max(1, round(row.output_tokens / output_scale))
        body = {
            "model": MODEL,
            "prompt": tokens.tolist(),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        requests.append(
            PlannedRequest(
                at_s=at_s,
                body=json.dumps(body, separators=(",", ":")).encode(),
                tokens=tokens,
                blocks=numbering.number_blocks(tokens, output_tokens=output_tokens),
            )
        )
    blocks = [request.blocks for request in requests]
    infinite = infinite_cache_hits(blocks)
    return Plan(
        trace=trace,
        requests=tuple(requests),
        infinite=infinite,
        capacity=capacity_for(blocks, engines=options.engines, blocks_per_engine=options.blocks),
        tokens_per_id=tokens_per_id,
        speedup=speedup,
        output_scale=output_scale,
        engine_speedup=_engine_speedup(
            speedup * tokens_per_id / TOKENS_PER_ID,
            new_tokens=(infinite.blocks - infinite.hit_blocks) * options.block_size,
            engine_s=options.engines * max(requests[-1].at_s, 1.0),
        ),
    )


def _engine_speedup(as_recorded: float, *, new_tokens: int, engine_s: float) -> float:
    """The engines' speed at which routing matters more than queueing.

    The trace is played faster and with fewer tokens; `as_recorded` compensates for both, and the
    engines get `ENGINE_HEADROOM` times more. A trace of a larger fleet would still overload them,
    so they are also fast enough to be busy for a small share of the run. They are never slower
    than real ones.
    """
    busy_s = new_tokens * PREFILL_TOKEN_US / 1e6
    return max(1.0, as_recorded * ENGINE_HEADROOM, busy_s / (engine_s * _BUSY_SHARE_MAX))
