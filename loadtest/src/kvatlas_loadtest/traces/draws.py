"""Draws from what a trace showed: without replacement, so that even short results keep its means.

A draw is like cards dealt from a deck: as many values as there are come out each once, in random
order. A part of a deck is a systematic sample of the sorted values, which keeps their distribution.
"""

from dataclasses import dataclass

import numpy as np

from kvatlas_loadtest.traces.requests import Floats, Ints, Requests, offsets_of, runs
from kvatlas_loadtest.traces.shapes import Shapes


@dataclass(frozen=True, slots=True)
class Knobs:
    """How the new trace differs from its source; 1 leaves everything as it is.

    Attributes:
        prefix_len_multiplier: lengths of the shared prefixes.
        prefix_root_multiplier: copies of the core tree; each walk takes one of them by chance.
        prompt_len_multiplier: tokens of the tails, at least one.
        osl_multiplier: tokens of the answers; an answer keeps at least one, an empty one stays empty.
        speedup_ratio: divides all times.
    """

    prefix_len_multiplier: float = 1.0
    prefix_root_multiplier: int = 1
    prompt_len_multiplier: float = 1.0
    osl_multiplier: float = 1.0
    speedup_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Drawn:
    """Requests of the new trace as drawn, one per index.

    Attributes:
        times_ms: arrivals.
        exits: last segments of their prefixes.
        hub_bases: added to the numbers of hub blocks.
        local_bases: added to the numbers of local blocks.
        tail_bases: ids of the first blocks of their tails.
        tail_tokens: lengths of their tails; 0: none.
        last_tokens: tokens in the last block of a prompt without a tail.
        output_tokens: lengths of the answers.
    """

    times_ms: Floats
    exits: Ints
    hub_bases: Ints
    local_bases: Ints
    tail_bases: Ints
    tail_tokens: Ints
    last_tokens: Ints
    output_tokens: Ints

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.exits)

    def taken(self, places: Ints | slice) -> "Drawn":
        """Return those at these places."""
        return Drawn(*(getattr(self, name)[places] for name in Drawn.__slots__))


def concatenated(first: Drawn, second: Drawn) -> Drawn:
    """All requests of both."""
    return Drawn(
        *(np.concatenate((getattr(first, name), getattr(second, name))) for name in Drawn.__slots__)
    )


class Ids:
    """Hands out ids that were never used before: a counter."""

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, count: int) -> int:
        """Reserve `count` ids and return the first."""
        first = self._next
        self._next += count
        return first

    def take_runs(self, lengths: Ints) -> Ints:
        """Reserve a run of ids for each length and return their first ones."""
        offsets = offsets_of(lengths.ravel())
        return self.take(int(offsets[-1])) + offsets[:-1].reshape(lengths.shape)


def deal(values: Ints | Floats, rows: int, count: int, rng: np.random.Generator) -> Ints:
    """Deal `count` of the values for each row, in random order; return their places.

    Whole decks are dealt whole; the rest is a systematic sample of the sorted values.
    """
    whole, rest = divmod(count, max(1, len(values)))
    dealt = np.tile(np.arange(len(values)), (rows, whole))
    if rest:
        starts = rng.random((rows, 1))
        places = ((np.arange(rest) + starts) * (len(values) / rest)).astype(np.int64)
        dealt = np.concatenate((dealt, np.argsort(values, kind="stable")[places]), axis=1)
    return rng.permuted(dealt, axis=1)


def sample_groups(group: Ints, weight: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Choose whole groups with `count` requests in all; return these requests, ascending.

    The groups are a systematic sample of all, sorted by size and by mean weight. If they have too few
    requests, more groups follow; the group that is too much loses its last requests.
    """
    sizes = np.bincount(group)
    weights = np.bincount(group, weights=weight) / sizes
    shuffled = rng.permutation(len(sizes))
    order = shuffled[np.lexsort((weights[shuffled], sizes[shuffled]))]
    wanted = max(1, round(len(sizes) * count / len(group)))
    places = ((np.arange(wanted) + rng.random()) * (len(sizes) / wanted)).astype(np.int64)
    chosen = order[places]
    others = rng.permutation(np.setdiff1d(order, chosen))
    ranks = np.full(len(sizes), len(sizes))
    ranks[np.concatenate((rng.permutation(chosen), others))] = np.arange(len(sizes))
    by_rank = np.lexsort((np.arange(len(group)), ranks[group]))
    return np.sort(by_rank[:count])


def tail_tokens(blocks: Ints, last: Ints, block_size: int, multiplier: float) -> Ints:
    """Tokens of tails of so many blocks, of which the last has `last` tokens, times the multiplier."""
    tokens = (blocks - 1) * block_size + last
    return scaled_tokens(np.where(blocks > 0, tokens, 0), multiplier)


def scaled_tokens(tokens: Ints, multiplier: float) -> Ints:
    """Lengths times the multiplier, rounded; none falls from above 0 to 0."""
    scaled = np.floor(tokens * multiplier + 0.5).astype(np.int64)
    return np.maximum(scaled, np.minimum(tokens, 1))


def last_tokens(requests: Requests, block_size: int) -> Ints:
    """Tokens in the last block of each request, 1 to `block_size`."""
    return (requests.input_tokens - 1) % block_size + 1


def assemble(drawn: Drawn, shapes: Shapes, *, block_size: int, knobs: Knobs) -> Requests:
    """Make requests of drawn ones, with ids unless the source has none."""
    core = shapes.path_lengths[drawn.exits]
    tails = -(-drawn.tail_tokens // block_size)
    whole = np.where(tails > 0, core, core - 1) * block_size
    input_tokens = whole + np.where(tails > 0, drawn.tail_tokens, drawn.last_tokens)
    offsets = offsets_of(core + tails)
    ids = np.empty(int(offsets[-1]), dtype=np.int64)
    numbers = shapes.paths[runs(shapes.path_offsets[drawn.exits], core)]
    ids[runs(offsets[:-1], core)] = numbers + np.where(
        numbers < shapes.hub_blocks,
        np.repeat(drawn.hub_bases, core),
        np.repeat(drawn.local_bases, core),
    )
    ids[runs(offsets[:-1] + core, tails)] = runs(drawn.tail_bases, tails)
    return Requests(
        np.floor(drawn.times_ms / knobs.speedup_ratio),
        input_tokens,
        drawn.output_tokens,
        offsets,
        ids,
        np.arange(1, len(drawn) + 1),
        lengths_only=False,
    )
