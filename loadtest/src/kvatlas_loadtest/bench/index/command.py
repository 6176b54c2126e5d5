"""The benchmark as `kvatlas bench` runs it, without or with its own flags."""

import argparse

from kvatlas_loadtest.bench.index.options import Options, add_flags, read_options
from kvatlas_loadtest.bench.index.run import measure
from kvatlas_loadtest.bench.rows import Row


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Index: block operations per second and look-ups, compared with published designs."""
    # With all benchmarks, only the stream with most targets is played.
    return measure(Options(only=("hub",)), quick=quick)


class Flags:
    """The benchmark's own flags."""

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add them to the parser."""
        add_flags(parser)

    def run(self, words: argparse.Namespace, *, quick: bool) -> list[Row]:
        """Run with the parsed flags."""
        return measure(read_options(words), quick=quick)
