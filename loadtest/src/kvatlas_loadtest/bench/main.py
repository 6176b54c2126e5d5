"""`kvatlas bench`: runs benchmarks by name, prints a table, writes rows of JSON."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from kvatlas_chassis import FatalError, SettingsError
from kvatlas_loadtest.bench import find_matches, frontend, hashing
from kvatlas_loadtest.bench.rows import Row, rows_table, write_rows
from kvatlas_loadtest.supervisor import FleetError

Bench = Callable[[bool], list[Row]]
"""Runs a benchmark; True: tiny, to see that it works. Its docstring's first line describes it."""

BENCHES: Mapping[str, Bench] = {
    "hashing": hashing.run,
    "find-matches": find_matches.run,
    "frontend": frontend.run,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{self.prog}: {message} (--help lists the flags)")


def command(argv: Sequence[str]) -> int:
    """Run what is named; exit status 0 whether or not targets were met, since rows say that."""
    try:
        words = _parser().parse_args(argv)
        if words.list:
            for name, bench in BENCHES.items():
                sys.stdout.write(f"{name:<14}{_summary(bench)}\n")
            return 0
        _run(words.names or list(BENCHES), file=words.json, quick=words.quick)
    except (FatalError, FleetError) as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status if isinstance(error, FatalError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvatlas bench",
        description="Measure how fast the parts are, against what was asked of them.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("names", nargs="*", type=_name, metavar="NAME", help="benchmarks to run (default: all)")
    add("--list", action="store_true", help="name the benchmarks")
    add("--json", type=Path, metavar="FILE", help="write the rows there too")
    add("--quick", action="store_true", help="run tiny: shows that they work, measures nothing")
    return parser


def _name(text: str) -> str:
    if text not in BENCHES:
        known = ", ".join(BENCHES)
        raise argparse.ArgumentTypeError(f"unknown benchmark {text!r}; there are {known}")
    return text


def _run(names: Sequence[str], *, file: Path | None, quick: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    rows: list[Row] = []
    for name in names:
        with console.status(f"{name}: {_summary(BENCHES[name])}"):
            rows += BENCHES[name](quick)
    console.print(rows_table(rows))
    if file is not None:
        write_rows(file, rows)


def _summary(bench: Bench) -> str:
    return (bench.__doc__ or "").strip().splitlines()[0]
