"""The flags of `kvatlas demo`, checked before anything is started."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvatlas_frontend.routing.profile import BUILT_IN
from kvatlas_loadtest.flags import Parser, add_value, count, positive

POLICIES = ("kv-aware", "least-loaded", "round-robin")
"""The policies that are compared unless others are named, in this order."""


@dataclass(frozen=True, slots=True)
class Options:
    """The demo's settings; None: derived from the trace."""

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
    words = vars(_parser().parse_args(argv))
    words["policies"] = tuple(dict.fromkeys(words["policies"] or POLICIES))
    return Options(**words)


def _parser() -> Parser:
    parser = Parser(
        prog="kvatlas demo",
        description="Start a fleet on this machine, play a request trace through it once per "
        "policy, and compare.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    value = partial(add_value, add)
    value("--trace", Path, "FILE", "request trace in Mooncake's format (default: the shipped one)")
    value("--requests", count, "N", "number of the trace's requests to play", default=1_000)
    value("--engines", count, "N", "number of mock engines", default=8)
    value("--frontends", count, "N", "number of frontends", default=2)
    value("--indexers", count, "N", "number of indexer replicas", default=2)
    add(
        "--policy",
        dest="policies",
        nargs="+",
        action="extend",
        type=_policy,
        metavar="NAME",
        help=f"routing policies to compare, by name or profile file; there are {', '.join(BUILT_IN)} (default: {' '.join(POLICIES)})",
    )
    value("--seed", int, "N", "seed of prompts and arrivals", default=0)
    value("--block-size", count, "N", "tokens per block", default=16)
    value(
        *("--blocks", count, "N"),
        "blocks in each engine's cache (default: so that a part of the trace is evicted)",
    )
    value(
        *("--speedup", positive, "X"),
        "factor by which the trace and the engines run faster (default: set by --rate)",
    )
    value(
        "--rate", positive, "X", "mean requests per second, unless --speedup is given", default=50.0
    )
    value(
        *("--tokens-per-id", count, "N"),
        "tokens that stand for 512 tokens of the trace (default: so that prompts have about 2000 "
        "tokens on average)",
    )
    value("--json", _output, "FILE", "file to write the results to, as JSON")
    value("--logs", Path, "DIR", "folder to keep the processes' logs in (default: none is kept)")
    add("--keep", action="store_true", help="keep the last fleet running until Ctrl-C")
    add(
        "--kill-indexer",
        action="store_true",
        help="kill one indexer in the middle of the first run; no request may fail",
    )
    return parser


def _output(text: str) -> Path:
    """The path of a file that can be written, checked before the runs."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: no file in a folder that exists")
    return path


def _policy(text: str) -> str:
    if text not in BUILT_IN and not Path(text).is_file():
        raise argparse.ArgumentTypeError(
            f"unknown policy {text!r}; there are {', '.join(BUILT_IN)}, or a profile's file"
        )
    return text
