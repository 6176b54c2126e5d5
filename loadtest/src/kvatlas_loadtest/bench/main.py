"""`kvatlas bench`: runs benchmarks by name, prints a table, writes rows of JSON.

A benchmark may have flags of its own. They are accepted if its name comes before the first flag:
`kvatlas bench index --help`.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from rich.console import Console

from kvatlas_chassis import FatalError, SettingsError
from kvatlas_loadtest.bench import find_matches, hashing, replica_start
from kvatlas_loadtest.bench.engine_events import run as engine_events
from kvatlas_loadtest.bench.frontend import command as frontend
from kvatlas_loadtest.bench.index import command as index
from kvatlas_loadtest.bench.ledger import run as ledger
from kvatlas_loadtest.bench.log_to_visible import freshness, throughput
from kvatlas_loadtest.bench.rows import Row, rows_table, write_rows
from kvatlas_loadtest.flags import Parser
from kvatlas_loadtest.supervisor import FleetError

Bench = Callable[[bool], list[Row]]
"""Runs a benchmark; True: tiny, to show that it works. Its docstring's first line describes it."""


class OwnFlags(Protocol):
    """The flags of one benchmark besides the common ones."""

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add them to the parser."""
        ...

    def run(self, words: argparse.Namespace, *, quick: bool) -> list[Row]:
        """Run with the parsed flags."""
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
    "ledger": ledger.run,
}

OWN_FLAGS: Mapping[str, OwnFlags] = {
    "index": index.Flags(),
    "frontend": frontend.Flags(),
    "ledger": ledger.Flags(),
}

BY_NAME_ONLY = frozenset({"ledger"})
"""Benchmarks that run only if they are named: they build programs for a quarter of an hour."""


def command(argv: Sequence[str]) -> int:
    """Run the named benchmarks. The exit status is 0 even if targets are missed: rows show that."""
    try:
        with_flags = _with_own_flags(argv)
        words = _parser(with_flags).parse_args(argv)
        if words.list:
            for name, bench in BENCHES.items():
                sys.stdout.write(f"{name:<16}{_summary(bench)}\n")
            return 0
        _run(words, with_flags)
    except (FatalError, FleetError) as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status if isinstance(error, FatalError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _with_own_flags(argv: Sequence[str]) -> list[str]:
    """The benchmarks named before the first flag that have flags of their own."""
    named = takewhile(lambda word: not word.startswith("-"), argv)
    with_flags = [name for name in dict.fromkeys(named) if name in OWN_FLAGS]
    if len(with_flags) > 1:
        raise SettingsError(f"kvatlas bench: run {' and '.join(with_flags)} one after another")
    return with_flags


def _parser(with_flags: Sequence[str]) -> argparse.ArgumentParser:
    parser = Parser(
        prog="kvatlas bench",
        description="Run benchmarks and compare their figures with the targets.",
        epilog=f"These have more flags: {', '.join(OWN_FLAGS)} (kvatlas bench NAME --help).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "names",
        nargs="*",
        type=_name,
        metavar="NAME",
        help="benchmarks to run (default: all but ledger)",
    )
    add("--list", action="store_true", help="list the benchmarks and exit")
    add("--json", type=Path, metavar="FILE", help="file to write the rows to, as JSON")
    add("--quick", action="store_true", help="run tiny: shows that they work; figures mean nothing")
    for name in with_flags:
        OWN_FLAGS[name].add(parser)
    return parser


def _name(text: str) -> str:
    if text not in BENCHES:
        known = ", ".join(BENCHES)
        raise argparse.ArgumentTypeError(f"unknown benchmark {text!r}; there are {known}")
    return text


def _run(words: argparse.Namespace, with_flags: Sequence[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    rows: list[Row] = []
    for name in words.names or [name for name in BENCHES if name not in BY_NAME_ONLY]:
        if name in with_flags:
            rows += OWN_FLAGS[name].run(words, quick=words.quick)
        elif name in OWN_FLAGS:  # these show their own progress
            rows += BENCHES[name](words.quick)
        else:
            with console.status(f"{name}: {_summary(BENCHES[name])}"):
                rows += BENCHES[name](words.quick)
    console.print(rows_table(rows))
    if words.json is not None:
        write_rows(words.json, rows)


def _summary(bench: Bench) -> str:
    return (bench.__doc__ or "").strip().splitlines()[0]
