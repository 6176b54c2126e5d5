"""The benchmark as `kvatlas bench` runs it, without or with its own flags."""

import argparse
from pathlib import Path

import uvloop

from kvatlas_loadtest.bench.frontend.measures import LOAD_S
from kvatlas_loadtest.bench.frontend.routers import ROUTERS
from kvatlas_loadtest.bench.frontend.run import Options, measure
from kvatlas_loadtest.bench.rows import Row
from kvatlas_loadtest.flags import add_value, positive


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Frontend: added latency, requests per second, CPU, memory, beside nginx and other routers."""
    return uvloop.run(measure(Options(), quick=quick))


class Flags:
    """The benchmark's own flags."""

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add them to the parser."""
        add = parser.add_argument_group("the frontend's benchmark").add_argument
        add(
            "--peers",
            type=Path,
            nargs="+",
            default=[],
            metavar="DIR",
            help="folders with the programs of other routers; PATH is searched after them",
        )
        add(
            "--routers",
            nargs="+",
            choices=ROUTERS,
            default=list(ROUTERS),
            metavar="NAME",
            help=f"routers to measure (default: {' '.join(ROUTERS)})",
        )
        text = "duration of each load, in seconds"
        add_value(add, "--seconds", positive, "X", text, default=LOAD_S)

    def run(self, words: argparse.Namespace, *, quick: bool) -> list[Row]:
        """Run with the parsed flags."""
        options = Options(tuple(words.peers), tuple(words.routers), words.seconds)
        return uvloop.run(measure(options, quick=quick))
