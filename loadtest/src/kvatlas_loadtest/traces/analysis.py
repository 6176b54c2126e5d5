"""Figures of a trace: lengths, hits of caches of every size, reuse, the shape of the prefix tree.

The trace is folded in parts. Memory follows the distinct blocks and lengths, not the requests.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvatlas_loadtest.traces.blocks import ROOT, BlockTree
from kvatlas_loadtest.traces.requests import Floats, Ints, Requests, joined
from kvatlas_loadtest.traces.stack_distances import StackDistances

_FOLD_REFERENCES = 1 << 18
_TIME_STEPS = 64  # buckets of reuse times per factor of two: quantiles are within 0.6 %


class Counts:
    """How often each value occurred."""

    def __init__(self) -> None:
        self.values: Ints = np.zeros(0, dtype=np.int64)
        self.counts: Ints = np.zeros(0, dtype=np.int64)

    def add(self, values: Ints) -> None:
        """Count these values too."""
        new, counts = np.unique(values, return_counts=True)
        merged, inverse = np.unique(np.concatenate((self.values, new)), return_inverse=True)
        total = np.zeros(len(merged), dtype=np.int64)
        np.add.at(total, inverse, np.concatenate((self.counts, counts)))
        self.values, self.counts = merged, total

    @property
    def total(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Their mean; 0 without any."""
        return float(self.values @ self.counts) / self.total if self.total else 0.0

    def quantile(self, share: float) -> int:
        """The smallest value that at least this share of them does not exceed; 0 without any."""
        if not self.total:
            return 0
        rank = max(1, math.ceil(share * self.total))
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank)])

    def up_to(self, bounds: Ints) -> Ints:
        """Return for each bound how many values are below it."""
        below = np.concatenate(([0], np.cumsum(self.counts)))
        return below[np.searchsorted(self.values, bounds)]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The prefix tree of a trace.

    Attributes:
        roots: blocks that begin a prompt.
        leaves: blocks that no other one follows.
        depth_max: blocks of the longest prompt.
        branches: blocks with several children.
        branching_mean: children of these, on the mean.
        branching_max: most children of one block.
        shared: blocks in more than one request.
    """

    nodes: int
    roots: int
    leaves: int
    depth_max: int
    branches: int
    branching_mean: float
    branching_max: int
    shared: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """All figures of one trace.

    Attributes:
        references: ids of all requests; hit ratios are shares of them.
        distances: stack distances of the references that are no first ones, in blocks.
        reuse_s: times since the block's last use, of the same references.
        visits: requests of each block.
        nodes_by_depth: distinct blocks at each depth.
        lengths_only: the trace has no hash ids, so nothing is known about prefixes.
    """

    name: str
    tokens_per_id: int
    requests: int
    span_s: float
    input_tokens: Counts
    output_tokens: Counts
    references: int
    distances: Counts
    reuse_s: Mapping[float, float]
    reuse_times: Counts
    visits: Counts
    nodes_by_depth: Ints
    tree: TreeShape
    lengths_only: bool

    @property
    def infinite_hit_ratio(self) -> float:
        """Share of the references that an infinite cache has seen before."""
        return self.distances.total / self.references if self.references else 0.0

    def lru_hit_ratio(self, capacities: Ints) -> Floats:
        """Hit ratio of an LRU cache of each capacity, in blocks."""
        return self.distances.up_to(capacities) / max(1, self.references)

    @property
    def capacities(self) -> Ints:
        """Two sizes per factor of two, from one block to all distinct ones."""
        distinct = self.tree.nodes
        if not distinct:
            return np.zeros(0, dtype=np.int64)
        steps = np.arange(2 * math.ceil(math.log2(distinct)) + 1)
        sizes = np.round(2.0 ** (steps / 2)).astype(np.int64)
        return np.unique(np.append(sizes[sizes < distinct], distinct))

    def document(self) -> dict[str, Any]:
        """The figures as JSON; null where the trace has no ids to tell."""
        capacities = self.capacities
        ratios = self.lru_hit_ratio(capacities)
        tree = self.tree
        prefixes: dict[str, Any] = {
            "infinite_cache_hit_ratio": self.infinite_hit_ratio,
            "lru": [
                {"blocks": int(blocks), "hit_ratio": float(ratio)}
                for blocks, ratio in zip(capacities, ratios, strict=True)
            ],
            "block_references": self.references,
            "reuse_blocks": quantiles(self.distances),
            "reuse_s": dict(zip(("p50", "p90", "p99"), self.reuse_s.values(), strict=True)),
            "tree": {name: getattr(tree, name) for name in TreeShape.__slots__},
        }
        if self.lengths_only:
            prefixes = {"infinite_cache_hit_ratio": None, "lru": []}
        return {
            "trace": self.name,
            "tokens_per_id": self.tokens_per_id,
            "requests": self.requests,
            "span_s": self.span_s,
            "input_tokens_mean": self.input_tokens.mean,
            "output_tokens_mean": self.output_tokens.mean,
            "input_tokens": quantiles(self.input_tokens),
            "output_tokens": quantiles(self.output_tokens),
            **prefixes,
        }


SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""The quantiles that are shown."""


def quantiles(counts: Counts) -> dict[str, int]:
    """Quantiles by name, and the largest value."""
    shown = {name: counts.quantile(share) for name, share in SHARES.items()}
    return {**shown, "max": counts.quantile(1.0)}


def analyze(parts: Iterable[Requests], *, name: str, tokens_per_id: int) -> Analysis:
    """Fold the parts of a trace into its figures.

    Raises:
        TraceError: the ids do not form a tree, or reading the parts failed.
    """
    folded = _Fold(name)
    waiting: list[Requests] = []
    references = 0
    for part in parts:
        waiting.append(part)
        references += len(part.ids)
        # A fold also sorts all distinct blocks, so it waits for as many references.
        if references >= max(_FOLD_REFERENCES, len(folded.tree)) or part.lengths_only:
            folded.fold(joined(waiting))
            waiting, references = [], 0
    if waiting:
        folded.fold(joined(waiting))
    return folded.analysis(name, tokens_per_id)


class _Fold:
    """The figures of the parts so far."""

    def __init__(self, name: str) -> None:
        self.tree = BlockTree(name)
        self.stack = StackDistances()
        self.input_tokens, self.output_tokens = Counts(), Counts()
        self.distances, self.reuse_times = Counts(), Counts()
        self.used_ms: Floats = np.zeros(0)  # last use of each block
        self.requests = self.references = 0
        self.first_ms, self.last_ms = math.inf, 0.0
        self.lengths_only = True

    def fold(self, part: Requests) -> None:
        self.input_tokens.add(part.input_tokens)
        self.output_tokens.add(part.output_tokens)
        self.requests += len(part)
        self.references += len(part.ids)
        self.first_ms = min(self.first_ms, float(part.timestamps_ms[0]))
        self.last_ms = float(part.timestamps_ms[-1])
        if part.lengths_only:
            return
        self.lengths_only = False
        numbers = self.tree.add(part)
        distances = self.stack.fold(numbers, part.offsets, known=len(self.tree))
        self.distances.add(distances[distances >= 0])
        self._fold_reuse_times(part, numbers, distances)

    def _fold_reuse_times(self, part: Requests, numbers: Ints, distances: Ints) -> None:
        times = np.repeat(part.timestamps_ms, part.blocks)
        fresh = np.zeros(len(self.tree) - len(self.used_ms))
        self.used_ms = np.concatenate((self.used_ms, fresh))
        order = np.argsort(numbers, kind="stable")
        again = np.flatnonzero(numbers[order][1:] == numbers[order][:-1]) + 1
        before = self.used_ms[numbers]
        before[order[again]] = times[order[again - 1]]
        gaps_ms = (times - before)[distances >= 0]
        self.reuse_times.add(np.round(np.log2(gaps_ms + 1) * _TIME_STEPS).astype(np.int64))
        self.used_ms[numbers] = times  # the last of equal indices wins, and that is the latest

    def analysis(self, name: str, tokens_per_id: int) -> Analysis:
        visits = Counts()
        visits.add(self.tree.visits)
        reuse_s = {
            share: (2 ** (self.reuse_times.quantile(share) / _TIME_STEPS) - 1) / 1_000
            for share in SHARES.values()
        }
        return Analysis(
            name=name,
            tokens_per_id=tokens_per_id,
            requests=self.requests,
            span_s=(self.last_ms - self.first_ms) / 1_000 if self.requests else 0.0,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            references=self.references,
            distances=self.distances,
            reuse_s=reuse_s,
            reuse_times=self.reuse_times,
            visits=visits,
            nodes_by_depth=np.bincount(self.tree.depth),
            tree=_shape(self.tree),
            lengths_only=self.lengths_only,
        )


def _shape(tree: BlockTree) -> TreeShape:
    inner = tree.parent[tree.parent != ROOT]
    children = np.bincount(inner, minlength=len(tree))
    branches = children[children > 1]
    return TreeShape(
        nodes=len(tree),
        roots=len(tree) - len(inner),
        leaves=int(np.count_nonzero(children == 0)),
        depth_max=int(tree.depth.max(initial=-1)) + 1,
        branches=len(branches),
        branching_mean=float(branches.mean()) if len(branches) else 0.0,
        branching_max=int(branches.max(initial=0)),
        shared=int(np.count_nonzero(tree.visits > 1)),
    )


def reuse_seconds(analysis: Analysis) -> Floats:
    """The reuse times that were counted, in seconds, ascending."""
    return (2.0 ** (analysis.reuse_times.values / _TIME_STEPS) - 1) / 1_000
