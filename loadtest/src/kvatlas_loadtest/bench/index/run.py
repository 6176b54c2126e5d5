"""Runs the benchmark: streams, races, single calls, tables and files."""

import json
import os
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path

from rich.console import Console

from kvatlas_chassis import FatalError, SettingsError
from kvatlas_loadtest.bench.index import plot, python_baseline
from kvatlas_loadtest.bench.index.flat_index import answers_at_half_load, fresh_memory
from kvatlas_loadtest.bench.index.micro import Line, micro_rows
from kvatlas_loadtest.bench.index.micro_tables import micro_tables
from kvatlas_loadtest.bench.index.options import CONTENDERS, EVERY_DESIGN, Options
from kvatlas_loadtest.bench.index.program import Design, Program, Trial
from kvatlas_loadtest.bench.index.progress import ProgressBar, progress_bar
from kvatlas_loadtest.bench.index.race import Contender, Race, RaceLimits
from kvatlas_loadtest.bench.index.results import FLAT, StreamResults, documents
from kvatlas_loadtest.bench.index.search import Rules
from kvatlas_loadtest.bench.index.streams import (
    Recipe,
    Stream,
    first_part,
    given_stream,
    make_stream,
)
from kvatlas_loadtest.bench.index.tables import LEGEND, results_table
from kvatlas_loadtest.bench.index.targets import KEPT, PRESIZED, stream_rows
from kvatlas_loadtest.bench.index.text_table import TextTable, page
from kvatlas_loadtest.bench.loadgen import find_program
from kvatlas_loadtest.bench.rows import Row
from kvatlas_loadtest.trace import SHIPPED

QUICK_REQUESTS = 150
"""Number of the trace's requests in a quick run."""

_QUICK_START = 8.0
"""First window of a quick run, in multiples of the guess: wide enough to count."""

_PYTHON_S = 5.0


def measure(options: Options, *, quick: bool) -> list[Row]:
    """Run the benchmark, print a table per stream, write the files of `--out`.

    Args:
        options: the settings.
        quick: run tiny, to show that it works.

    Raises:
        SettingsError: a design is unknown, or the trace cannot be read.
        FatalError: the generator is missing or fails, or a file cannot be written.
    """
    console = Console(width=None if sys.stdout.isatty() else 180)
    program = Program(find_program(quick=quick))
    designs = _chosen(program, options)
    all_results: list[StreamResults] = []
    rows: list[Row] = []
    with (
        stream_folder(options.out) as folder,
        trace_file(options.trace, folder, quick=quick) as trace,
        progress_bar(console) as watch,
    ):
        bench = _Bench(program, options, watch, quick=quick)
        ours = FLAT in {design.name for design in designs}
        lines = bench.single_calls() if options.micro and ours else []
        kinds = options.streams or options.only
        for number, kind in enumerate(kinds, start=1):
            name = kind.name if isinstance(kind, Path) else kind
            watch.about(f"{name}, stream {number} of {len(kinds)}")
            watch.now("making the stream")
            stream = (
                given_stream(kind)
                if isinstance(kind, Path)
                else make_stream(program, stream_recipe(options, trace, quick=quick), kind, folder)
            )
            results = bench.race(stream, designs)
            all_results.append(results)
            rows += bench.rows(results)
            if options.out is not None:  # after each stream, because all of them take long
                _write_streams(options.out, all_results, _conditions(options, quick=quick))
    rows += micro_rows(lines)
    tables = micro_tables(lines)
    for table in (*map(results_table, all_results), *tables):
        console.print(table.table())
    if all_results:
        console.print(LEGEND, style="dim")
    if options.out is not None and lines:
        _write_single_calls(options.out, lines, tables)
    return rows


class _Bench:
    """Measures one stream after another."""

    def __init__(
        self, program: Program, options: Options, watch: ProgressBar, *, quick: bool
    ) -> None:
        self._program = program
        self._options = options
        self._watch = watch
        self._quick = quick
        self._large = options.large
        self._trials = 1 if quick else options.trials

    def race(self, stream: Stream, designs: Sequence[Design]) -> StreamResults:
        """Measure all designs on one stream, and the nested dictionaries in Python.

        Raises:
            FatalError: the stream is empty, or the generator fails.
        """
        if not stream.header.block_ops:
            raise FatalError(f"kvatlas bench index: {stream.path.name} holds nothing to play")
        budget_s, from_share = self._options.budget_s, stream.from_share
        limits = RaceLimits(Rules(trials=self._trials), budget_s, from_share=from_share)
        if self._quick:
            rules = Rules(trials=self._trials, start=_QUICK_START, windows_max=1)
            limits = RaceLimits(rules, budget_s, shares=(1.0,), from_share=from_share)
        contenders = [Contender(design, design.name) for design in designs]
        contenders += [
            Contender(design, label, (flag,))
            for design in designs
            if design.name == FLAT and stream.kind == "hub"
            for label, flag in ((KEPT, "--kept-memory"), (PRESIZED, "--presized"))
        ]
        race = Race(partial(self._play, stream), partial(first_part, stream), limits, self._watch)
        results = race.run(contenders)
        if self._options.designs in (None, (EVERY_DESIGN,)) and not stream.from_share:
            index = python_baseline.make_index()
            if index is not None:
                self._watch.now(python_baseline.LABEL)
                seconds = 0.05 if self._quick else _PYTHON_S
                results = (*results, python_baseline.measure(index, stream, seconds=seconds))
        return StreamResults(stream, results)

    def _play(
        self, stream: Stream, file: Path, contender: Contender, window_ms: int, timeout_s: float
    ) -> Trial | None:
        flags = [*contender.flags]
        if stream.from_share:
            flags += ["--from-share", str(stream.from_share)]
        name = contender.design.name
        return self._program.play(file, name, window_ms, *flags, timeout_s=timeout_s)

    def rows(self, results: StreamResults) -> list[Row]:
        """Rows that compare the flat index on one stream with its targets."""
        rows = stream_rows(results)
        if results.stream.kind == "hub":
            rows += fresh_memory(self._program, results, watch=self._watch)
        if results.stream.kind == "steady":
            rows += answers_at_half_load(
                self._program, results, trials=self._trials, watch=self._watch
            )
        return rows

    def single_calls(self) -> list[Line]:
        """The generator's figures of single calls of the flat index."""
        flags = [*(["--quick"] if self._quick else []), *(["--large"] if self._large else [])]
        self._watch.expect(1)
        self._watch.about("single calls")
        self._watch.now(f"{FLAT}{', 100 million memberships' if self._large else ''}")
        lines = self._program.single_calls(*flags)
        self._watch.done()
        return list(lines)


def _chosen(program: Program, options: Options) -> tuple[Design, ...]:
    """The designs to measure, in the order in which the generator lists them."""
    known = program.designs()
    names = {design.name for design in known}
    wanted = options.designs or CONTENDERS
    if EVERY_DESIGN in wanted:
        return known
    for name in wanted:
        if name not in names:
            listed = ", ".join(repr(design.name) for design in known)
            raise SettingsError(f"kvatlas bench index: no design {name!r}; there are {listed}")
    return tuple(design for design in known if design.name in wanted)


def stream_recipe(options: Options, trace: Path, *, quick: bool) -> Recipe:
    """The settings for making streams; tiny ones in a quick run."""
    if quick:
        return Recipe(trace, 8, options.block_size, 1, capacity=256, seed=options.seed)
    return Recipe(
        trace,
        options.workers,
        options.block_size,
        options.replicas,
        capacity=options.capacity,
        seed=options.seed,
    )


@contextmanager
def stream_folder(out: Path | None) -> Generator[Path]:
    """The folder for streams: temporary, or in `--out`."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as folder:
            yield Path(folder)
        return
    folder = out / "streams"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FatalError(f"kvatlas bench: cannot make {folder}: {error.strerror}") from None
    yield folder


@contextmanager
def trace_file(given: Path | None, folder: Path, *, quick: bool) -> Generator[Path]:
    """The trace as a file; in a quick run only its first lines."""
    shipped = files("kvatlas_loadtest") / "data" / SHIPPED
    with as_file(shipped) as default:
        trace = given or default
        if not quick:
            yield trace
            return
        first = folder / "quick.jsonl"
        with trace.open(encoding="utf-8") as lines:
            first.write_text("".join(islice(lines, QUICK_REQUESTS)))
        yield first


def _conditions(options: Options, *, quick: bool) -> str:
    trace = options.trace.name if options.trace else SHIPPED
    source = "given streams" if options.streams else f"streams made of {trace}, seed {options.seed}"
    return (
        f"{os.cpu_count()} cores; {source}; {options.trials} trials a window; a design that takes "
        f"longer than {options.budget_s:g} s is measured on the first part of a stream."
        f"{' A quick run: these figures mean nothing.' if quick else ''}"
    )


def _write_streams(out: Path, all_results: Sequence[StreamResults], conditions: str) -> None:
    tables = [results_table(results) for results in all_results]
    _write(out / "index.md", page((LEGEND, conditions), tables))
    _write(out / "index.json", json.dumps(documents(all_results), indent=2) + "\n")
    plot.draw(all_results, out / "index.png")


def _write_single_calls(out: Path, lines: Sequence[Line], tables: Sequence[TextTable]) -> None:
    _write(out / "single-calls.md", page((), tables))
    _write(out / "single-calls.json", json.dumps(lines, indent=2) + "\n")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise FatalError(f"kvatlas bench: cannot write {file}: {error.strerror}") from None
