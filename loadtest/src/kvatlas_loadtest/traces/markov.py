"""The Markov model: every request is a walk down the core tree, independent of all others.

Lengths of tails, of last blocks and of answers are drawn by themselves. Arrivals are bursts at one
time and gaps between them. So prefixes, lengths and rate are as in the source, but nothing ties a
request to the time at which its prefix was last used. Reuse distances are therefore too long, and
caches smaller than infinite find too little. The session model keeps them.

Requests are drawn in generations as long as the source. One has the source's walks, each once, and
local blocks of its own. A part of a generation takes whole groups, or most of its prefixes would be
used once. Memory follows the source: as many generations are drawn at once as make 65,536 requests.
"""

from collections.abc import Iterator

import numpy as np

from kvatlas_loadtest.traces.draws import (
    Drawn,
    Ids,
    Knobs,
    deal,
    last_tokens,
    sample_groups,
    scaled_tokens,
    tail_tokens,
)
from kvatlas_loadtest.traces.requests import Floats, Ints
from kvatlas_loadtest.traces.shapes import Shapes

BATCH_REQUESTS = 1 << 16


def draw_markov(
    shapes: Shapes, *, count: int, block_size: int, knobs: Knobs, rng: np.random.Generator
) -> Iterator[Drawn]:
    """Yield `count` requests in batches, by arrival."""
    model = _Markov(shapes, block_size, knobs, rng)
    size = len(shapes.requests)
    whole, rest = divmod(count, size)
    at_once = max(1, BATCH_REQUESTS // size)
    for first in range(0, whole, at_once):
        rows = min(at_once, whole - first)
        walks = rng.permuted(np.tile(np.arange(size), (rows, 1)), axis=1)
        yield model.batch(walks)
    if rest:
        weight = shapes.requests.blocks
        yield model.batch(rng.permutation(sample_groups(shapes.group, weight, rest, rng))[None, :])


class _Markov:
    def __init__(
        self, shapes: Shapes, block_size: int, knobs: Knobs, rng: np.random.Generator
    ) -> None:
        self._shapes, self._block_size, self._knobs, self._rng = shapes, block_size, knobs, rng
        self._ids = Ids(shapes.hub_blocks * knobs.prefix_root_multiplier)
        self._last = last_tokens(shapes.requests, block_size)
        times, self._bursts = np.unique(shapes.requests.timestamps_ms, return_counts=True)
        gaps = np.diff(times)
        self._gaps = gaps if len(gaps) else np.zeros(1)
        self._now_ms = 0.0

    def batch(self, walks: Ints) -> Drawn:
        """Draw a generation for each row of walks, which are requests of the source."""
        shapes, knobs, rng = self._shapes, self._knobs, self._rng
        rows, count = walks.shape
        copies = knobs.prefix_root_multiplier
        local = shapes.blocks - shapes.hub_blocks
        copy: Ints = rng.integers(copies, size=walks.shape, dtype=np.int64)
        generation = np.arange(rows, dtype=np.int64).reshape(-1, 1) * copies + copy
        tokens = self._tails(walks)
        outputs = shapes.requests.output_tokens
        outputs = outputs[deal(outputs, rows, count, rng)]
        first = self._ids.take(rows * copies * local)
        return Drawn(
            self._times(rows, count).ravel(),
            shapes.exit[walks].ravel(),
            (copy * shapes.hub_blocks).ravel(),
            (first - shapes.hub_blocks + generation * local).ravel(),
            self._ids.take_runs(-(-tokens // self._block_size)).ravel(),
            tokens.ravel(),
            self._last[walks].ravel(),
            scaled_tokens(outputs, knobs.osl_multiplier).ravel(),
        )

    def _tails(self, walks: Ints) -> Ints:
        """Tokens of the tails, for those walks that have one."""
        shapes, has_tail = self._shapes, self._shapes.tail > 0
        tokens = np.zeros(walks.shape, dtype=np.int64)
        here = has_tail[walks]
        count = int(np.count_nonzero(here[0]))  # equal in all rows: each has the same walks
        blocks, last = shapes.tail[has_tail], self._last[has_tail]
        blocks = blocks[deal(blocks, len(walks), count, self._rng)]
        last = last[deal(last, len(walks), count, self._rng)]
        drawn = tail_tokens(blocks, last, self._block_size, self._knobs.prompt_len_multiplier)
        tokens[here] = drawn.ravel()
        return tokens

    def _times(self, rows: int, count: int) -> Floats:
        """Bursts and gaps between them, each generation after the one before."""
        size = len(self._bursts)
        bursts = self._bursts[deal(self._bursts, rows, size, self._rng)]
        gaps = self._gaps[deal(self._gaps, rows, size, self._rng)]
        ends = np.cumsum(gaps.ravel()).reshape(gaps.shape)
        starts = self._now_ms + ends - gaps
        times = np.repeat(starts.ravel(), bursts.ravel()).reshape(rows, -1)[:, :count]
        self._now_ms += float(ends[-1, -1])
        return times
