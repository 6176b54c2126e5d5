"""The benchmark as `kvatlas bench` runs it: without flags, or with those it was given."""

import argparse

from kvatlas_loadtest.bench.index.options import Options, add_flags, read_options
from kvatlas_loadtest.bench.index.run import measure
from kvatlas_loadtest.bench.rows import Row


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Block operations the index keeps up with, and its look-ups, beside every other design."""
    # Among all the others: the stream of most targets. The rest is asked for by name.
    return measure(Options(only=("hub",)), quick=quick)


class Flags:
    """Its own flags, for when it is named first."""

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add them to the parser."""
        add_flags(parser)

    def run(self, words: argparse.Namespace, *, quick: bool) -> list[Row]:
        """Run as they say."""
        return measure(read_options(words), quick=quick)
