"""`kvatlas bench`: runs benchmarks by name, prints a table, writes rows of JSON.

A benchmark may have flags of its own. They are known when its name comes before the first flag:
`kvatlas bench index --help`.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NoReturn, Protocol

from rich.console import Console

from kvatlas_chassis import FatalError, SettingsError
from kvatlas_loadtest.bench import find_matches, frontend, hashing, replica_start
from kvatlas_loadtest.bench.engine_events import run as engine_events
from kvatlas_loadtest.bench.index import entry as index
from kvatlas_loadtest.bench.rows import Row, rows_table, write_rows
from kvatlas_loadtest.bench.visible import freshness, throughput
from kvatlas_loadtest.supervisor import FleetError

Bench = Callable[[bool], list[Row]]
"""Runs a benchmark; True: tiny, to see that it works. Its docstring's first line describes it."""


class OwnFlags(Protocol):
    """The flags that one benchmark has beside those of all."""

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add them to the parser."""
        ...

    def run(self, words: argparse.Namespace, *, quick: bool) -> list[Row]:
        """Run as the parsed words say."""
        ...


BENCHES: Mapping[str, Bench] = {
    "hashing": hashing.run,
    "index": index.run,
    "find-matches": find_matches.run,
    "frontend": frontend.run,
    "replica-start": replica_start.run,
    "log-to-visible": throughput.run,
    "freshness": freshness.run,
    "engine-events": engine_events.run,
}

OWN_FLAGS: Mapping[str, OwnFlags] = {"index": index.Flags()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{self.prog}: {message} (--help lists the flags)")


def command(argv: Sequence[str]) -> int:
    """Run what is named; exit status 0 whether or not targets were met, since rows say that."""
    try:
        told = _with_own_flags(argv)
        words = _parser(told).parse_args(argv)
        if words.list:
            for name, bench in BENCHES.items():
                sys.stdout.write(f"{name:<16}{_summary(bench)}\n")
            return 0
        _run(words, told)
    except (FatalError, FleetError) as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status if isinstance(error, FatalError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _with_own_flags(argv: Sequence[str]) -> list[str]:
    """The benchmarks named before the first flag that have flags of their own."""
    named = takewhile(lambda word: not word.startswith("-"), argv)
    return [name for name in dict.fromkeys(named) if name in OWN_FLAGS]


def _parser(told: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvatlas bench",
        description="Measure how fast the parts are, against what was asked of them.",
        epilog=f"Flags of their own have: {', '.join(OWN_FLAGS)} (kvatlas bench NAME --help).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("names", nargs="*", type=_name, metavar="NAME", help="benchmarks to run (default: all)")
    add("--list", action="store_true", help="name the benchmarks")
    add("--json", type=Path, metavar="FILE", help="write the rows there too")
    add("--quick", action="store_true", help="run tiny: shows that they work, measures nothing")
    for name in told:
        OWN_FLAGS[name].add(parser)
    return parser


def _name(text: str) -> str:
    if text not in BENCHES:
        known = ", ".join(BENCHES)
        raise argparse.ArgumentTypeError(f"unknown benchmark {text!r}; there are {known}")
    return text


def _run(words: argparse.Namespace, told: Sequence[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    rows: list[Row] = []
    for name in words.names or list(BENCHES):
        if name in told:
            rows += OWN_FLAGS[name].run(words, quick=words.quick)
        elif name in OWN_FLAGS:  # these say themselves how far they are
            rows += BENCHES[name](words.quick)
        else:
            with console.status(f"{name}: {_summary(BENCHES[name])}"):
                rows += BENCHES[name](words.quick)
    console.print(rows_table(rows))
    if words.json is not None:
        write_rows(words.json, rows)


def _summary(bench: Bench) -> str:
    return (bench.__doc__ or "").strip().splitlines()[0]
