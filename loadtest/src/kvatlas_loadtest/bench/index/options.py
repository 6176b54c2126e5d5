"""What `kvatlas bench index` can be told, checked before anything is measured."""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from kvatlas_chassis import SettingsError
from kvatlas_loadtest.bench.index.streams import KINDS

CONTENDERS = (
    "nested dictionaries",
    "positional, jump 8",
    "host bitmaps",
    "concurrent radix tree",
    "concurrent radix tree, sticky",
    "flat index",
)
"""Those measured unless told otherwise: of each family the form that keeps up with most."""
EVERY_DESIGN = "all"


@dataclass(frozen=True, slots=True)
class Options:
    """The benchmark's settings.

    Attributes:
        trace: requests to make streams of; None: the trace that is shipped.
        streams: streams to play as they are, instead of made ones.
        only: kinds of streams to make; none: no stream is played, unless some are given.
        designs: names of designs to measure, or `all`; None: the contenders, and the nested
            dictionaries in Python.
        workers: of the fleet in a made stream.
        block_size: tokens a block, of all made streams but the fine one.
        replicas: times the trace is repeated; None: until its blocks overflow the workers' caches.
        capacity: blocks that a worker's cache holds.
        trials: of each window, and at half load.
        budget_s: a design that takes longer for a stream is measured on the first part of it.
        micro: measure single calls too.
        large: measure 10⁸ memberships too.
        out: folder for the table, the picture and the streams; None: nothing is kept.
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
    group = parser.add_argument_group("index", "streams, designs and rigour of `index`")
    add = group.add_argument
    default = Options()
    add("--trace", type=_file, metavar="FILE", help="a trace of Mooncake's form (default: shipped)")
    add(
        "--stream",
        type=_file,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="operation streams to play, instead of making some of a trace",
    )
    add(
        "--only",
        nargs="+",
        action="extend",
        choices=list(KINDS),
        metavar="KIND",
        help=f"streams to make ({' '.join(KINDS)}; default: all)",
    )
    add(
        "--designs",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"designs, or '{EVERY_DESIGN}' (default: {'; '.join(CONTENDERS)})",
    )
    add("--workers", type=_count, default=default.workers, metavar="N", help="(%(default)s)")
    add(
        "--block-size",
        type=_count,
        default=default.block_size,
        metavar="N",
        help="tokens a block, but for the fine stream (%(default)s)",
    )
    add(
        "--replicas",
        type=_count,
        metavar="N",
        help="repeat the trace N times (default: until its blocks are 4/3 of what all caches hold)",
    )
    add(
        "--capacity",
        type=_count,
        default=default.capacity,
        metavar="N",
        help="blocks that a worker caches (%(default)s)",
    )
    add("--seed", type=int, default=default.seed, metavar="N", help="of the streams (%(default)s)")
    add(
        "--trials",
        type=_count,
        default=default.trials,
        metavar="N",
        help="trials of each window; most of them must count (%(default)s)",
    )
    add(
        "--budget-s",
        type=_positive,
        default=default.budget_s,
        metavar="S",
        help="a design that needs longer for a stream gets the first part of it (%(default)s)",
    )
    micro = group.add_mutually_exclusive_group()
    micro.add_argument(
        "--no-micro", action="store_true", help="leave out the benchmarks of single calls"
    )
    micro.add_argument("--only-micro", action="store_true", help="play no stream")
    add("--large", action="store_true", help="load 100 million memberships too")
    add("--out", type=Path, metavar="DIR", help="keep table, picture and streams there")


def read_options(words: argparse.Namespace) -> Options:
    """The settings of parsed words.

    Raises:
        SettingsError: one line, naming the flag.
    """
    if words.stream and (words.trace or words.only or words.replicas):
        raise SettingsError(
            "kvatlas bench index: --stream is played as it is; "
            "--trace, --only and --replicas say how to make one"
        )
    if words.only_micro and (words.stream or words.only or words.designs):
        raise SettingsError(
            "kvatlas bench index: --only-micro times single calls of the flat index; "
            "--stream, --only and --designs are about streams"
        )
    return Options(
        trace=words.trace,
        streams=tuple(dict.fromkeys(words.stream)),
        only=() if words.only_micro else tuple(dict.fromkeys(words.only or KINDS)),
        designs=tuple(dict.fromkeys(words.designs)) if words.designs else None,
        workers=words.workers,
        block_size=words.block_size,
        replicas=words.replicas,
        capacity=words.capacity,
        seed=words.seed,
        trials=words.trials,
        budget_s=words.budget_s,
        micro=not words.no_micro,
        large=words.large,
        out=words.out,
    )


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no file {text!r}")
    return path


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
