"""Learns the prefixes of a trace: the core tree of shared blocks, merged into segments.

The method is that of the prefix data generator in NVIDIA Dynamo (`benchmarks/prefix_data_generator`
in github.com/ai-dynamo/dynamo). Blocks in more than one request are the core; the rest of a prompt
is its tail, which no other request shares. Chains of core blocks without a branch or an end are
merged into segments, as in a radix tree. A request walks down the segments and leaves the tree at
one of them: it ends there ("end"), or a tail follows ("cache end"). With walks counted, the chances
of a segment's exits are its transition probabilities. In a tree they multiply along the one way to
an exit to the share of the requests that took it. So drawing a request and taking its exit is the
same as walking, and needs no walk.

Two things are added. Segments in many requests are hubs, such as system prompts: they stay the same
however long the new trace gets. All else is local: a group is the requests that share a local
segment, and every generation of the new trace has its own blocks for it. Otherwise a long trace
would see each shared block ever more often, and its hit ratio would rise with its length.
"""

from dataclasses import dataclass

import numpy as np

from kvatlas_loadtest.traces.blocks import ROOT, BlockTree
from kvatlas_loadtest.traces.requests import Bools, Ints, Requests, offsets_of, runs

_HUB_SHARE = 0.01
_HUB_VISITS_MIN = 64  # a hub's first use in the source is a miss, later generations hit: ≤ 1/64 off


@dataclass(frozen=True, slots=True)
class Shapes:
    """The prefixes of a trace, ready to be drawn from.

    Segments are numbered from 1, parents before children; 0 is the empty prefix. Blocks of segments
    have numbers of their own: those of hubs from 0, local ones from `hub_blocks`.

    Attributes:
        requests: the source.
        numbers: its blocks, numbered densely.
        parent: of each segment.
        visits: requests that contain it.
        ends: requests that end with it.
        cache_ends: requests that leave it for a tail of their own.
        paths: numbers of the blocks of all prefixes, from the root down, after scaling.
        path_offsets: where the prefix of each segment begins in `paths`, and the end.
        hub_blocks: number of blocks of hubs.
        blocks: number of all blocks of segments.
        exit: last segment of each request.
        tail: blocks of its tail.
        group: of each request; numbered from 0 by first request.
        hub_depth: blocks of hubs that each request begins with, unscaled.
    """

    requests: Requests
    numbers: Ints
    parent: Ints
    visits: Ints
    ends: Ints
    cache_ends: Ints
    paths: Ints
    path_offsets: Ints
    hub_blocks: int
    blocks: int
    exit: Ints
    tail: Ints
    group: Ints
    hub_depth: Ints

    @property
    def path_lengths(self) -> Ints:
        """Blocks of the prefix of each segment."""
        return np.diff(self.path_offsets)


@dataclass(slots=True)
class _Segments:
    """Segments of the core, unscaled; index 0 is the empty prefix."""

    parent: Ints
    visits: Ints
    level: Ints  # number of segments before it
    depth: Ints  # blocks down to its end
    of_block: Ints  # segment of each core block, 0 for others


def learn_shapes(requests: Requests, *, name: str, prefix_len_multiplier: float) -> Shapes:
    """Learn the shapes of a whole trace; the core is stretched by the multiplier.

    A segment that ends at depth d ends at round(d * multiplier) afterwards, but keeps at least one
    block, so that prefixes that differ still do.

    Raises:
        TraceError: the ids do not form a tree.
    """
    tree = BlockTree(name)
    numbers = tree.add(requests)
    core = tree.visits > 1
    segments = _segments(tree, core)
    row = np.repeat(np.arange(len(requests)), requests.blocks)
    core_length = np.bincount(row[core[numbers]], minlength=len(requests))
    last = numbers[np.maximum(requests.offsets[:-1] + core_length - 1, 0)] if len(numbers) else row
    exits = np.zeros(len(requests), dtype=np.int64)
    if len(numbers):
        exits = np.where(core_length > 0, segments.of_block[last], 0)
    tail = requests.blocks - core_length
    hub = segments.visits >= max(_HUB_VISITS_MIN, _HUB_SHARE * len(requests))
    hub[0] = True
    begin, end = _scaled(segments, prefix_len_multiplier)
    base, hub_blocks, blocks = _block_numbers(end - begin, hub)
    paths, path_offsets = _paths(segments, base, begin, end)
    local_root, hub_depth = _local_roots(segments, hub)
    return Shapes(
        requests=requests,
        numbers=numbers,
        parent=segments.parent,
        visits=segments.visits,
        ends=np.bincount(exits[tail == 0], minlength=len(hub)),
        cache_ends=np.bincount(exits[tail > 0], minlength=len(hub)),
        paths=paths,
        path_offsets=path_offsets,
        hub_blocks=hub_blocks,
        blocks=blocks,
        exit=exits,
        tail=tail,
        group=_groups(local_root[exits]),
        hub_depth=hub_depth[exits],
    )


def _segments(tree: BlockTree, core: Bools) -> _Segments:
    """Merge core blocks with equal visits: each request goes on from one to the next."""
    blocks = np.flatnonzero(core)
    parent = tree.parent[blocks]
    first = (parent == ROOT) | (tree.visits[parent] != tree.visits[blocks])
    of_block = np.zeros(len(tree), dtype=np.int64)
    of_block[blocks[first]] = 1 + np.arange(np.count_nonzero(first))
    count = 1 + int(np.count_nonzero(first))
    segment_parent = np.zeros(count, dtype=np.int64)
    level = np.zeros(count, dtype=np.int64)
    depth = np.zeros(count, dtype=np.int64)
    visits = np.zeros(count, dtype=np.int64)
    for at_depth in _by_level(tree.depth[blocks]):
        here, before, begins = blocks[at_depth], parent[at_depth], first[at_depth]
        above = np.where(before == ROOT, 0, of_block[before])
        of_block[here[~begins]] = above[~begins]
        new = of_block[here[begins]]
        segment_parent[new] = above[begins]
        level[new] = level[above[begins]] + 1
        depth[of_block[here]] = tree.depth[here] + 1
        visits[of_block[here]] = tree.visits[here]
    return _Segments(segment_parent, visits, level, depth, of_block)


def _by_level(levels: Ints) -> list[Ints]:
    """Indices of each level, from the lowest."""
    order = np.argsort(levels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(levels[order])) + 1) if len(order) else []


def _scaled(segments: _Segments, multiplier: float) -> tuple[Ints, Ints]:
    """Depths at which each segment begins and ends after scaling."""
    begin = np.zeros(len(segments.parent), dtype=np.int64)
    end = np.zeros(len(segments.parent), dtype=np.int64)
    for here in _by_level(segments.level)[1:]:
        begin[here] = end[segments.parent[here]]
        wanted = np.floor(segments.depth[here] * multiplier + 0.5).astype(np.int64)
        end[here] = np.maximum(begin[here] + 1, wanted)
    return begin, end


def _block_numbers(lengths: Ints, hub: Bools) -> tuple[Ints, int, int]:
    """Number of each segment's first block; hubs come first."""
    base = np.zeros(len(lengths), dtype=np.int64)
    order = np.concatenate((np.flatnonzero(hub), np.flatnonzero(~hub)))
    base[order] = offsets_of(lengths[order])[:-1]
    return base, int(lengths[hub].sum()), int(lengths.sum())


def _paths(segments: _Segments, base: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    offsets = offsets_of(end)
    paths = np.zeros(offsets[-1], dtype=np.int64)
    for here in _by_level(segments.level)[1:]:
        above = segments.parent[here]
        paths[runs(offsets[here], begin[here])] = paths[runs(offsets[above], end[above])]
        own = end[here] - begin[here]
        paths[runs(offsets[here] + begin[here], own)] = runs(base[here], own)
    return paths, offsets


def _local_roots(segments: _Segments, hub: Bools) -> tuple[Ints, Ints]:
    """First local segment on the way to each one, 0 for hubs; and the blocks of hubs before it."""
    root = np.zeros(len(hub), dtype=np.int64)
    hub_depth = np.zeros(len(hub), dtype=np.int64)
    for here in _by_level(segments.level)[1:]:
        above = segments.parent[here]
        root[here] = np.where(hub[here], 0, np.where(root[above] > 0, root[above], here))
        hub_depth[here] = np.where(hub[here], segments.depth[here], hub_depth[above])
    return root, hub_depth


def _groups(roots: Ints) -> Ints:
    """A group per local root; a request without one is alone."""
    alone = len(roots) + int(roots.max(initial=0)) + np.arange(len(roots))
    _, first, inverse = np.unique(
        np.where(roots > 0, roots, alone), return_index=True, return_inverse=True
    )
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
