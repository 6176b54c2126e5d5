"""The streams that the designs are measured on, made from a trace or given."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvatlas_chassis import SettingsError
from kvatlas_loadtest.bench.index.opstream import Header, cut_stream, read_header
from kvatlas_loadtest.bench.index.program import Program
from kvatlas_loadtest.trace import TOKENS_PER_ID, TraceError, read_trace

OVERFLOW = 4 / 3
"""Blocks of a stream divided by the capacity of all caches, unless `--replicas` is given."""

_REQUESTS_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of stream.

    Attributes:
        title: its title in tables.
        hubs: keep ids that occur in more than 1 % of all prompts.
        from_share: records before this share only warm the index up.
        block_size: tokens per block; None: the value of `--block-size`.
    """

    title: str
    hubs: bool = True
    from_share: float = 0.0
    block_size: int | None = None


KINDS: Mapping[str, Kind] = {
    "hub": Kind("hub: a prefix that all prompts share"),
    "no-hub": Kind("no hub: the same without shared prefixes", hubs=False),
    "steady": Kind("steady: the last quarter of hub, on a warm index", from_share=0.75),
    "fine": Kind("fine: small blocks", block_size=16),
}


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream to play.

    Attributes:
        kind: the key in `KINDS`, or the name of a given file.
        title: its title in tables and plots.
        from_share: records before this share only warm the index up.
    """

    kind: str
    title: str
    path: Path
    from_share: float
    header: Header


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings for making streams from a trace; each is a flag of `kvatlas bench index`."""

    trace: Path
    workers: int
    block_size: int
    replicas: int | None
    capacity: int
    seed: int


def given_stream(path: Path) -> Stream:
    """The stream in a given file.

    Raises:
        FatalError: it is no operation stream.
    """
    return Stream(path.stem, path.name, path, 0.0, read_header(path))


def make_stream(program: Program, recipe: Recipe, kind: str, folder: Path) -> Stream:
    """A stream of a kind in `KINDS`; made unless it is in the folder already.

    Raises:
        SettingsError: the trace cannot be read.
        FatalError: the stream cannot be made.
    """
    made = KINDS[kind]
    block_size = made.block_size or recipe.block_size
    replicas = recipe.replicas or replicas_for(recipe, block_size)
    digest = hashlib.sha256(recipe.trace.read_bytes()).hexdigest()[:8]
    hubs = "hub" if made.hubs else "no-hub"
    name = (
        f"{hubs}-b{block_size}-w{recipe.workers}-r{replicas}-c{recipe.capacity}"
        f"-s{recipe.seed}-{digest}.kvops"
    )
    path = folder / name
    if not path.exists():
        part = path.with_suffix(".part")
        program.make_stream(
            recipe.trace,
            part,
            *("--workers", str(recipe.workers), "--block-size", str(block_size)),
            *("--replicas", str(replicas), "--capacity", str(recipe.capacity)),
            *("--seed", str(recipe.seed)),
            *(() if made.hubs else ("--without-hubs",)),
        )
        part.rename(path)
    header = read_header(path)
    title = f"{made.title} (B = {block_size}, {replicas} replicas)"
    return Stream(kind, title, path, made.from_share, header)


def replicas_for(recipe: Recipe, block_size: int) -> int:
    """The repetitions of the trace after which its blocks overflow the workers' caches.

    Raises:
        SettingsError: the trace cannot be read.
    """
    try:
        trace = read_trace(recipe.trace, requests_max=_REQUESTS_MAX)
    except TraceError as error:
        raise SettingsError(f"kvatlas bench index: {error}") from None
    ids = {hash_id for row in trace.rows for hash_id in row.hash_ids}
    held = recipe.workers * recipe.capacity
    blocks = len(ids) * max(1, TOKENS_PER_ID // block_size)
    return max(1, -(-round(held * OVERFLOW) // blocks))


def first_part(stream: Stream, share: float) -> Path:
    """The first `share` of a stream, by blocks, as a file beside it.

    Raises:
        FatalError: it cannot be written.
    """
    if share >= 1.0:
        return stream.path
    path = stream.path.with_name(f"{stream.path.stem}-first-{share:g}.kvops")
    return _cut_once(stream, path, round(stream.header.block_ops * share), None)


def before_evictions(stream: Stream) -> Path:
    """The part of a stream before the workers' caches overflow, as a file beside it.

    It ends when a thousandth of the stream's stored blocks have been removed again.

    Raises:
        FatalError: it cannot be written.
    """
    _, stored, _ = stream.header.blocks
    path = stream.path.with_name(f"{stream.path.stem}-fresh.kvops")
    return _cut_once(stream, path, stream.header.block_ops, stored // 1_000)


def _cut_once(stream: Stream, path: Path, block_ops: int, removed: int | None) -> Path:
    if not path.exists():
        part = path.with_suffix(".part")
        cut_stream(stream.path, part, block_ops=block_ops, removed_blocks=removed)
        part.rename(path)
    return path
