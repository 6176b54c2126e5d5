"""The two models under one roof, and how faithful each is to its source."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvatlas_loadtest.traces.analysis import Analysis, analyze
from kvatlas_loadtest.traces.draws import Drawn, Knobs, assemble
from kvatlas_loadtest.traces.markov import draw_markov
from kvatlas_loadtest.traces.requests import Requests, offsets_of
from kvatlas_loadtest.traces.sessions import draw_sessions, learn_turns
from kvatlas_loadtest.traces.shapes import Shapes, learn_shapes

MODELS = ("markov", "sessions")
_PART_BLOCKS = 1 << 19  # about: multipliers make prompts longer, not the memory of a part


@dataclass(frozen=True, slots=True)
class Source:
    """A whole trace to learn from.

    Attributes:
        tokens_per_id: number of tokens that one id stands for, also in the new trace.
    """

    name: str
    requests: Requests
    tokens_per_id: int


def with_own_ids(requests: Requests, *, tokens_per_id: int) -> Requests:
    """Requests that share nothing, for a source that has only lengths."""
    offsets = offsets_of(-(-requests.input_tokens // tokens_per_id))
    ids = np.arange(int(offsets[-1]))
    return replace(requests, offsets=offsets, ids=ids, lengths_only=False)


def synthesize(
    source: Source, model: str, *, count: int, seed: int, knobs: Knobs
) -> Iterator[Requests]:
    """Yield `count` requests like those of the source, part by part, by arrival.

    The same arguments give the same requests. Memory follows the source, not `count`.

    Raises:
        TraceError: the source's ids do not form a tree.
    """
    shapes = learn_shapes(
        source.requests, name=source.name, prefix_len_multiplier=knobs.prefix_len_multiplier
    )
    for drawn in _drawn(source, shapes, model, count=count, seed=seed, knobs=knobs):
        blocks = shapes.path_lengths[drawn.exits] + drawn.tail_tokens // source.tokens_per_id + 1
        at_once = max(1, int(_PART_BLOCKS * len(drawn) / max(1, blocks.sum())))
        for begin in range(0, len(drawn), at_once):
            part = drawn.taken(slice(begin, begin + at_once))
            yield assemble(part, shapes, block_size=source.tokens_per_id, knobs=knobs)


def _drawn(
    source: Source, shapes: Shapes, model: str, *, count: int, seed: int, knobs: Knobs
) -> Iterator[Drawn]:
    rng = np.random.default_rng(seed)
    size = source.tokens_per_id
    if model == "markov":
        return draw_markov(shapes, count=count, block_size=size, knobs=knobs, rng=rng)
    turns = learn_turns(shapes, block_size=size)
    return draw_sessions(shapes, turns, count=count, block_size=size, knobs=knobs, rng=rng)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far a new trace is from its source.

    Attributes:
        infinite_points: hit ratio of an infinite cache, new less source, in points.
        lru_points: the largest difference of the LRU hit ratios, over the source's capacities.
        lru_blocks: the capacity at which it occurs.
        input_mean: mean input length, new over source, less 1.
        output_mean: the same of the outputs.
    """

    infinite_points: float
    lru_points: float
    lru_blocks: int
    input_mean: float
    output_mean: float


def compare(source: Analysis, new: Analysis) -> Fidelity:
    """Compare the figures of a new trace with those of its source."""
    capacities = source.capacities
    differences = 100 * (new.lru_hit_ratio(capacities) - source.lru_hit_ratio(capacities))
    worst = int(np.argmax(np.abs(differences)))
    return Fidelity(
        infinite_points=100 * (new.infinite_hit_ratio - source.infinite_hit_ratio),
        lru_points=float(differences[worst]),
        lru_blocks=int(capacities[worst]),
        input_mean=_ratio(new.input_tokens.mean, source.input_tokens.mean) - 1,
        output_mean=_ratio(new.output_tokens.mean, source.output_tokens.mean) - 1,
    )


def _ratio(new: float, source: float) -> float:
    return new / source if source else 1.0


def analysis_of(source: Source) -> Analysis:
    """The figures of a source."""
    return analyze([source.requests], name=source.name, tokens_per_id=source.tokens_per_id)


def try_model(source: Source, model: str, *, seed: int, count: int | None = None) -> Analysis:
    """The figures of a new trace with all knobs at 1; as long as the source, unless told."""
    size = len(source.requests) if count is None else count
    parts = synthesize(source, model, count=size, seed=seed, knobs=Knobs())
    return analyze(parts, name=model, tokens_per_id=source.tokens_per_id)
