"""What `kvatlas demo` can be told, checked before anything is started."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kvatlas_chassis import SettingsError

POLICIES = ("kv-aware", "least-loaded", "round-robin")
"""The policies that a frontend has built in, in the order in which the demo compares them."""


@dataclass(frozen=True, slots=True)
class Options:
    """The demo's settings; None: worked out from the trace."""

    trace: Path | None
    requests: int
    engines: int
    frontends: int
    indexers: int
    policies: tuple[str, ...]
    seed: int
    block_size: int
    blocks: int | None
    speedup: float | None
    tokens_per_id: int | None
    rate: float
    json: Path | None
    logs: Path | None
    keep: bool
    kill_indexer: bool


def read_options(argv: Sequence[str]) -> Options:
    """Parse the words after `demo`. `--help` prints and raises SystemExit(0).

    Raises:
        SettingsError: one line, naming the flag.
    """
    words = _parser().parse_args(argv)
    return Options(
        trace=words.trace,
        requests=words.requests,
        engines=words.engines,
        frontends=words.frontends,
        indexers=words.indexers,
        policies=tuple(dict.fromkeys(words.policy or POLICIES)),
        seed=words.seed,
        block_size=words.block_size,
        blocks=words.blocks,
        speedup=words.speedup,
        tokens_per_id=words.tokens_per_id,
        rate=words.rate,
        json=words.json,
        logs=words.logs,
        keep=words.keep,
        kill_indexer=words.kill_indexer,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{self.prog}: {message} (--help lists the flags)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvatlas demo",
        description="Start a fleet on this machine, play a request trace through it once per "
        "policy, and compare.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--trace", type=Path, metavar="FILE", help="a trace of Mooncake's form (default: shipped)")
    add(
        "--requests", type=_count, default=1_000, metavar="N", help="play its first N (%(default)s)"
    )
    add("--engines", type=_count, default=8, metavar="N", help="mock engines (%(default)s)")
    add("--frontends", type=_count, default=2, metavar="N", help="frontends (%(default)s)")
    add("--indexers", type=_count, default=2, metavar="N", help="indexer replicas (%(default)s)")
    add(
        "--policy",
        nargs="+",
        action="extend",
        type=_policy,
        metavar="NAME",
        help=f"policies to compare, by name or profile file ({' '.join(POLICIES)})",
    )
    add("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (%(default)s)")
    add("--block-size", type=_count, default=16, metavar="N", help="tokens a block (%(default)s)")
    add("--blocks", type=_count, metavar="N", help="blocks an engine holds (default: by the trace)")
    add(
        "--speedup",
        type=_positive,
        metavar="X",
        help="play the trace and its engines X times as fast (default: by --rate)",
    )
    add(
        "--rate",
        type=_positive,
        default=50.0,
        metavar="X",
        help="mean requests a second, unless --speedup says it (%(default)s)",
    )
    add(
        "--tokens-per-id",
        type=_count,
        metavar="N",
        help="tokens that stand for 512 of the trace (default: by the trace's lengths)",
    )
    add("--json", type=_output, metavar="FILE", help="write the results there too")
    add("--logs", type=Path, metavar="DIR", help="keep the processes' logs there")
    add("--keep", action="store_true", help="leave the last fleet up until Ctrl-C")
    add(
        "--kill-indexer",
        action="store_true",
        help="kill one indexer in the middle of the first run, to see that nobody notices",
    )
    return parser


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


def _output(text: str) -> Path:
    """Refused now rather than after the runs."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: no file in a folder that exists")
    return path


def _policy(text: str) -> str:
    if text not in POLICIES and not Path(text).is_file():
        raise argparse.ArgumentTypeError(
            f"unknown policy {text!r}; there are {', '.join(POLICIES)}, or a profile's file"
        )
    return text
