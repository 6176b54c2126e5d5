"""The session model: requests come in sessions, whose turns continue one another after a while.

A request continues an earlier one if it contains all its full blocks; the last block of a prompt is
partial as a rule, so the next turn fills it and it gets another id. It branches off if it shares
blocks beyond the hubs, but not all: another answer to an earlier turn, or a document that several
requests begin with. Either way its origin is the latest request with the deepest block that it
shares, and its think time is the time since then. A request without an origin starts a session.

A session's shape is drawn whole: which turn has which origin, what each adds to the shared prefix,
and which hubs it begins with. Turns, growth and fan-out of a session depend on each other too much
to be drawn apart. Think times, tails, last blocks and answers are drawn among all turns of the same
kind (start, continuation, branch), think times also among sessions with about as many turns.
Sessions start at the times at which the source's do, and each
takes a start near its own, so the new trace has the source's busy hours. Think times also come from
turns at about the same time: a trace ends after a while, and late sessions were seen for less of it.

A generation is as long as the source, and the next one begins where it ends. A part of one has a
sample of the sessions, whose starts are moved together, so that the rate stays. Late turns of one
generation fall into the next; they wait in memory until it is their time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvatlas_loadtest.traces.draws import (
    Drawn,
    Ids,
    Knobs,
    concatenated,
    deal,
    last_tokens,
    sample_groups,
    scaled_tokens,
    tail_tokens,
)
from kvatlas_loadtest.traces.markov import BATCH_REQUESTS
from kvatlas_loadtest.traces.requests import Floats, Ints
from kvatlas_loadtest.traces.shapes import Shapes

START, CONTINUATION, BRANCH = 0, 1, 2
"""Kinds of turns."""
_KINDS = (START, CONTINUATION, BRANCH)
_NO_TAIL = len(_KINDS)

_NEIGHBOURHOOD = 1 / 32
"""Draws stay within about this share of the trace's turns or sessions, by time."""


@dataclass(frozen=True, slots=True)
class Turns:
    """How the requests of a trace follow each other.

    Attributes:
        origin: the request that each one continues or branches off; its own index for a start.
        kind: `START`, `CONTINUATION` or `BRANCH`.
        think_ms: time since the origin; of a start, since the first request of the trace.
        level: number of turns before it, along its origins.
    """

    origin: Ints
    kind: Ints
    think_ms: Floats
    level: Ints


def learn_turns(shapes: Shapes, *, block_size: int) -> Turns:
    """Find the sessions of a trace."""
    requests, numbers = shapes.requests, shapes.numbers
    count = len(requests)
    row = np.repeat(np.arange(count), requests.blocks)
    order = np.argsort(numbers, kind="stable")
    again = np.flatnonzero(numbers[order][1:] == numbers[order][:-1]) + 1
    user_before = np.full(len(numbers), -1, dtype=np.int64)  # latest earlier request with the block
    user_before[order[again]] = row[order[again - 1]]
    matched = np.bincount(row[user_before >= 0], minlength=count)
    origin = np.arange(count)
    follows = np.flatnonzero(matched > shapes.hub_depth)
    origin[follows] = user_before[requests.offsets[follows] + matched[follows] - 1]
    kind = np.where(matched >= requests.input_tokens[origin] // block_size, CONTINUATION, BRANCH)
    kind[origin == np.arange(count)] = START
    times = requests.timestamps_ms
    think = times - np.where(kind == START, times[0], times[origin])
    return Turns(origin, kind, think, _levels(origin))


def _levels(origin: Ints) -> Ints:
    level = np.zeros(len(origin), dtype=np.int64)
    above = origin.copy()
    moving = np.flatnonzero(above != np.arange(len(origin)))
    while len(moving):
        level[moving] += 1
        following = origin[above[moving]]
        moved = following != above[moving]
        above[moving] = following
        moving = moving[moved]
    return level


def draw_sessions(
    shapes: Shapes,
    turns: Turns,
    *,
    count: int,
    block_size: int,
    knobs: Knobs,
    rng: np.random.Generator,
) -> Iterator[Drawn]:
    """Yield `count` requests in batches, by arrival."""
    model = _Sessions(shapes, turns, block_size, knobs, rng)
    size = len(shapes.requests)
    whole, rest = divmod(count, size)
    at_once = max(1, BATCH_REQUESTS // size)
    for first in range(0, whole, at_once):
        rows = min(at_once, whole - first)
        yield model.batch(np.arange(size), rows)
    if rest:
        yield model.batch(sample_groups(shapes.group, shapes.requests.blocks, rest, rng), 1)
    yield model.remainder()


class _Sessions:
    def __init__(
        self,
        shapes: Shapes,
        turns: Turns,
        block_size: int,
        knobs: Knobs,
        rng: np.random.Generator,
    ) -> None:
        self._shapes, self._turns = shapes, turns
        self._block_size, self._knobs, self._rng = block_size, knobs, rng
        self._ids = Ids(shapes.hub_blocks * knobs.prefix_root_multiplier)
        self._last = last_tokens(shapes.requests, block_size)
        turns_of = np.bincount(shapes.group)[shapes.group]
        pace = np.log2(turns_of).astype(np.int64) + 1  # longer sessions have shorter think times
        self._paces = np.where(turns.kind == START, START, turns.kind + pace * len(_KINDS))
        times = shapes.requests.timestamps_ms
        self._span_ms = float(times[-1] - times[0]) * (1 + 1 / max(1, len(times) - 1))
        self._now_ms = 0.0
        self._late: Drawn | None = None

    def batch(self, chosen: Ints, rows: int) -> Drawn:
        """Draw `rows` generations of the chosen requests; return what comes before the next one."""
        shapes, knobs, rng = self._shapes, self._knobs, self._rng
        copies = knobs.prefix_root_multiplier
        local = shapes.blocks - shapes.hub_blocks
        share = len(chosen) / len(shapes.requests)
        groups = int(shapes.group.max()) + 1
        copy = rng.integers(copies, size=(rows, groups))[:, shapes.group[chosen]]
        tokens = self._tails(chosen, rows)
        outputs = shapes.requests.output_tokens
        outputs = outputs[self._donors(outputs, self._turns.kind, chosen, rows)]
        first = self._ids.take(rows * local)
        local_bases = first - shapes.hub_blocks + np.arange(rows) * local
        drawn = Drawn(
            self._times(chosen, rows, share).ravel(),
            np.tile(shapes.exit[chosen], rows),
            (copy * shapes.hub_blocks).ravel(),
            np.repeat(local_bases, len(chosen)),
            self._ids.take_runs(-(-tokens // self._block_size)).ravel(),
            tokens.ravel(),
            np.tile(self._last[chosen], rows),
            scaled_tokens(outputs, knobs.osl_multiplier).ravel(),
        )
        self._now_ms += rows * self._span_ms * share
        return self._due(drawn if self._late is None else concatenated(self._late, drawn))

    def remainder(self) -> Drawn:
        """Return what still waits."""
        if self._late is None:
            raise RuntimeError("no batch was drawn")
        return self._late

    def _due(self, drawn: Drawn) -> Drawn:
        ordered = drawn.taken(np.argsort(drawn.times_ms, kind="stable"))
        due = int(np.searchsorted(ordered.times_ms, self._now_ms))
        self._late = ordered.taken(slice(due, None))
        return ordered.taken(slice(0, due))

    def _times(self, chosen: Ints, rows: int, share: float) -> Floats:
        """Starts of sessions, and on them the think times of their turns, origins first."""
        turns = self._turns
        place = np.full(len(turns.kind), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        times = turns.think_ms[self._neighbours(self._paces, chosen, rows)]
        starts = turns.kind[chosen] == START
        times[:, starts] *= share
        times[:, starts] += self._now_ms + np.arange(rows)[:, None] * (self._span_ms * share)
        level = turns.level[chosen]
        for at in range(1, int(level.max(initial=0)) + 1):
            here = np.flatnonzero(level == at)
            times[:, here] += times[:, place[turns.origin[chosen[here]]]]
        return times

    def _tails(self, chosen: Ints, rows: int) -> Ints:
        """Tokens of the tails, drawn among the turns of a kind that have one."""
        shapes = self._shapes
        classes = np.where(shapes.tail > 0, self._turns.kind, _NO_TAIL)
        blocks = shapes.tail[self._donors(shapes.tail, classes, chosen, rows)]
        last = self._last[self._donors(self._last, classes, chosen, rows)]
        return tail_tokens(blocks, last, self._block_size, self._knobs.prompt_len_multiplier)

    def _donors(self, values: Ints, classes: Ints, chosen: Ints, rows: int) -> Ints:
        """Choose a turn of the same class for each chosen one, from which it takes its value.

        A part of a generation takes values from all turns of the class, so that it keeps their mean.
        """
        if len(chosen) == len(classes):
            return self._neighbours(classes, chosen, rows)
        donors = np.empty((rows, len(chosen)), dtype=np.int64)
        for kind in np.unique(classes[chosen]):
            places = np.flatnonzero(classes[chosen] == kind)
            pool = np.flatnonzero(classes == kind)
            donors[:, places] = pool[deal(values[pool], rows, len(places), self._rng)]
        return donors

    def _neighbours(self, classes: Ints, chosen: Ints, rows: int) -> Ints:
        """Let chosen turns of the same class whose origins are near in time exchange values."""
        donors = np.empty((rows, len(chosen)), dtype=np.int64)
        for kind in np.unique(classes[chosen]):
            places = np.flatnonzero(classes[chosen] == kind)
            places = places[np.argsort(self._turns.origin[chosen[places]], kind="stable")]
            window = max(2.0, len(places) * _NEIGHBOURHOOD)
            noise = self._rng.random((rows, len(places))) * window
            order = np.argsort(np.arange(len(places)) + noise, axis=1, kind="stable")
            donors[:, places] = chosen[places][order]
        return donors
