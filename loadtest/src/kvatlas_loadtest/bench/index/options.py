"""The flags of `kvatlas bench index`, checked before anything is measured."""

import argparse
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from kvatlas_chassis import SettingsError
from kvatlas_loadtest.bench.index.streams import KINDS
from kvatlas_loadtest.flags import add_value, count, existing_file, positive

CONTENDERS = (
    "nested dictionaries",
    "positional, jump 8",
    "host bitmaps",
    "concurrent radix tree",
    "concurrent radix tree, sticky",
    "flat index",
)
"""The designs measured by default: of each family the fastest one."""
EVERY_DESIGN = "all"


@dataclass(frozen=True, slots=True)
class Options:
    """The benchmark's settings.

    Attributes:
        trace: requests to make streams from; None: the shipped trace.
        streams: streams to play as they are, instead of making some.
        only: kinds of streams to make; empty: play only given streams.
        designs: names of designs to measure, or `all`; None: the contenders, and the nested
            dictionaries in Python.
        workers: number of workers of a made stream.
        block_size: tokens per block of all made streams except the fine one.
        replicas: repetitions of the trace; None: until its blocks overflow the workers' caches.
        capacity: blocks in a worker's cache.
        trials: trials of each window, and at half load.
        budget_s: a design that takes longer for a stream is measured on its first part.
        micro: also measure single calls.
        large: also measure 10⁸ memberships.
        out: folder for tables, plot and streams; None: nothing is kept.
    """

    trace: Path | None = None
    streams: tuple[Path, ...] = ()
    only: tuple[str, ...] = tuple(KINDS)
    designs: tuple[str, ...] | None = None
    workers: int = 1_000
    block_size: int = 128
    replicas: int | None = None
    capacity: int = 16_384
    seed: int = 1
    trials: int = 3
    budget_s: float = 5.0
    micro: bool = True
    large: bool = False
    out: Path | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own flags to those of `kvatlas bench`."""
    group = parser.add_argument_group("index", "streams, designs and precision of `index`")
    add = group.add_argument
    value = partial(add_value, add)
    several = partial(add, nargs="+", action="extend")
    default = Options()
    value(
        *("--trace", existing_file, "FILE"),
        "request trace in Mooncake's format (default: the shipped one)",
    )
    several(
        "--stream",
        dest="streams",
        type=existing_file,
        metavar="FILE",
        help="operation streams to play, instead of making some from a trace",
    )
    several(
        "--only",
        choices=list(KINDS),
        metavar="KIND",
        help=f"kinds of streams to make, of {' '.join(KINDS)} (default: all)",
    )
    several(
        "--designs",
        metavar="NAME",
        help=f"designs to measure, or '{EVERY_DESIGN}' (default: {'; '.join(CONTENDERS)})",
    )
    value("--workers", count, "N", "workers of a made stream", default=default.workers)
    value(
        *("--block-size", count, "N"),
        "tokens per block, except in the fine stream",
        default=default.block_size,
    )
    value(
        *("--replicas", count, "N"),
        "repetitions of the trace (default: until its blocks are 4/3 of all caches' capacity)",
    )
    value("--capacity", count, "N", "blocks in a worker's cache", default=default.capacity)
    value("--seed", int, "N", "seed of the streams", default=default.seed)
    value(
        *("--trials", count, "N"),
        "trials of each window; most of them must count",
        default=default.trials,
    )
    value(
        *("--budget-s", positive, "S"),
        "time for a stream, in seconds; a slower design plays only the stream's first part",
        default=default.budget_s,
    )
    micro = group.add_mutually_exclusive_group()
    micro.add_argument(
        "--no-micro", dest="micro", action="store_false", help="skip the benchmarks of single calls"
    )
    micro.add_argument(
        "--only-micro", action="store_true", help="run the benchmarks of single calls only"
    )
    add("--large", action="store_true", help="also load 100 million memberships")
    value("--out", Path, "DIR", "folder to keep tables, plot and streams in")


def read_options(words: argparse.Namespace) -> Options:
    """The settings of the parsed flags.

    Raises:
        SettingsError: one line, naming the flag.
    """
    if words.streams and (words.trace or words.only or words.replicas):
        raise SettingsError(
            "kvatlas bench index: --stream is played as it is; "
            "--trace, --only and --replicas say how to make one"
        )
    if words.only_micro and (words.streams or words.only or words.designs):
        raise SettingsError(
            "kvatlas bench index: --only-micro times single calls of the flat index; "
            "--stream, --only and --designs are about streams"
        )
    given = {field.name: getattr(words, field.name) for field in fields(Options)}
    for name in ("streams", "only", "designs"):
        given[name] = tuple(dict.fromkeys(given[name] or ()))
    given["only"] = () if words.only_micro else given["only"] or tuple(KINDS)
    given["designs"] = given["designs"] or None
    return Options(**given)
