"""The benchmark as `kvatlas bench` runs it: programs, rounds, tables, flags."""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

from rich.console import Console

from kvatlas_chassis import FatalError
from kvatlas_loadtest.bench.index.options import Options as IndexOptions
from kvatlas_loadtest.bench.index.program import Program, Trial
from kvatlas_loadtest.bench.index.progress import ProgressBar, progress_bar
from kvatlas_loadtest.bench.index.results import FLAT
from kvatlas_loadtest.bench.index.run import stream_folder, stream_recipe, trace_file
from kvatlas_loadtest.bench.index.streams import KINDS, Stream, make_stream
from kvatlas_loadtest.bench.ledger.rounds import Ratio, play_round, turns_of
from kvatlas_loadtest.bench.ledger.tables import LEGEND, NAME, gain_rows, stream_table
from kvatlas_loadtest.bench.ledger.tricks import TRICKS, Trick
from kvatlas_loadtest.bench.loadgen import find_program
from kvatlas_loadtest.bench.rows import Row
from kvatlas_loadtest.flags import add_value, count, existing_file

_ANSWERS = ("--answers", "ids", "--limit", "32")
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """The benchmark's settings.

    Attributes:
        trace: requests to make streams from; None: the shipped trace.
        only: kinds of streams to make.
        tricks: names of the optimizations to leave out, one at a time.
        rounds: rounds of trials.
        capacity: blocks in a worker's cache.
        out: folder for programs, streams and rounds; None: nothing is kept.
    """

    trace: Path | None = None
    only: tuple[str, ...] = tuple(KINDS)
    tricks: tuple[str, ...] = tuple(trick.name for trick in TRICKS)
    rounds: int = 5
    capacity: int = 4_096
    out: Path | None = None


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Ledger: what each optimization of the index buys; builds it without each one."""
    return measure(Options(), quick=quick)


class Flags:
    """The benchmark's own flags."""

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add them to the parser."""
        group = parser.add_argument_group("ledger", "streams and precision of `ledger`")
        value = partial(add_value, group.add_argument)
        several = partial(group.add_argument, nargs="+")
        default = Options()
        value(
            *("--trace", existing_file, "FILE"),
            "request trace in Mooncake's format (default: the shipped one)",
        )
        several(
            "--only",
            choices=list(KINDS),
            default=default.only,
            metavar="KIND",
            help=f"kinds of streams to make, of {' '.join(KINDS)} (default: all)",
        )
        several(
            "--tricks",
            choices=default.tricks,
            default=default.tricks,
            metavar="NAME",
            help=f"optimizations to leave out, of {' '.join(default.tricks)} (default: all)",
        )
        value("--rounds", count, "N", "rounds of trials", default=default.rounds)
        value("--capacity", count, "N", "blocks in a worker's cache", default=default.capacity)
        value(
            *("--out", Path, "DIR"),
            "folder to keep programs, streams and rounds in; the rounds in it count too",
        )

    def run(self, words: argparse.Namespace, *, quick: bool) -> list[Row]:
        """Run with the parsed flags."""
        given = {field.name: getattr(words, field.name) for field in fields(Options)}
        return measure(Options(**given), quick=quick)


def measure(options: Options, *, quick: bool) -> list[Row]:
    """Run the benchmark, and print a table per stream.

    Args:
        options: the settings.
        quick: run tiny, on a program that is built already, to show that it works.

    Raises:
        SettingsError: the trace cannot be read.
        FatalError: a program cannot be built or fails.
    """
    console = Console(width=None if sys.stdout.isatty() else 180)
    tricks = [trick for trick in TRICKS if trick.name in options.tricks]
    if quick:
        tricks = tricks[:2]
    index = IndexOptions(trace=options.trace, capacity=options.capacity)
    with (
        stream_folder(options.out) as streams,
        trace_file(options.trace, streams, quick=quick) as trace,
        progress_bar(console) as watch,
    ):
        if quick:
            found = Program(find_program(quick=True))
            programs = dict.fromkeys([None, *(trick.name for trick in tricks)], found)
        else:
            programs = _build(tricks, (options.out or streams) / "programs", watch)
        kinds = ("hub",) if quick else options.only
        rounds = 1 if quick else options.rounds
        recipe = stream_recipe(index, trace, quick=quick)
        made = [make_stream(programs[None], recipe, kind, streams) for kind in kinds]
        watch.expect(rounds * len(made) * turns_of(tricks))
        kept = None if options.out is None else options.out / "rounds.jsonl"
        ratios = _read(kept) if kept is not None and kept.exists() else []
        for number in range(rounds):
            for stream in made:
                watch.about(f"{stream.kind}, round {number + 1} of {rounds}")
                play = _Player(programs, stream, watch).play
                new = list(play_round(play, tricks, stream.kind, backwards=number % 2 == 1))
                ratios += new
                if kept is not None:
                    _append(kept, new)
    libs = _checkout() / "libs"
    for kind in dict.fromkeys(ratio.stream for ratio in ratios):
        console.print(stream_table(kind, tricks, ratios, libs).table())
    console.print(LEGEND, style="dim")
    return gain_rows(tricks, ratios)


def _build(tricks: Sequence[Trick], folder: Path, watch: ProgressBar) -> dict[str | None, Program]:
    """The programs by the optimization that they lack; None: none. Those in `folder` are reused."""
    folder.mkdir(parents=True, exist_ok=True)
    programs: dict[str | None, Program] = {}
    watch.about("programs")
    watch.expect(1 + len(tricks))
    target = _checkout() / "target" / NAME
    for trick in (None, *tricks):
        name, path = (None, folder / "base") if trick is None else (trick.name, folder / trick.name)
        watch.now(f"building {path.name}")
        if not path.exists():
            words = ["build", "--quiet", "--locked", "--release", "-p", "kvatlas-loadgen"]
            words += [
                "--target-dir",
                str(target),
                *(["--features", trick.feature] if trick else []),
            ]
            done = subprocess.run(["cargo", *words], cwd=_checkout(), check=False)  # noqa: S603, S607
            if done.returncode:
                raise FatalError(f"kvatlas bench: cannot build {path.name}")
            shutil.copy(target / "release" / "kvatlas-loadgen", path)
        programs[name] = Program(path)
        watch.done()
    return programs


def _checkout() -> Path:
    """The checkout that this package is installed from.

    Raises:
        FatalError: it is not installed from one.
    """
    for folder in Path(__file__).parents:
        if (folder / "libs" / "index" / "rust").is_dir():
            return folder
    raise FatalError("kvatlas bench: ledger needs a checkout, to build the index from")


class _Player:
    """Plays one stream on the programs, by the optimization that they lack."""

    def __init__(
        self, programs: Mapping[str | None, Program], stream: Stream, watch: ProgressBar
    ) -> None:
        self._programs = programs
        self._stream = stream
        self._watch = watch

    def play(self, trick: Trick | None, window_ms: int, kept_memory: bool) -> Trial:  # noqa: FBT001 - a `Play`
        """Play one trial.

        Raises:
            FatalError: the program fails, or takes too long.
        """
        self._watch.now(f"without {trick.name}" if trick else "with all")
        flags = [*_ANSWERS, *(["--kept-memory"] if kept_memory else [])]
        if self._stream.from_share:
            flags += ["--from-share", str(self._stream.from_share)]
        program = self._programs[trick.name if trick else None]
        trial = program.play(self._stream.path, FLAT, window_ms, *flags, timeout_s=_TIMEOUT_S)
        if trial is None:
            raise FatalError(f"kvatlas bench: a trial took longer than {_TIMEOUT_S:g} s")
        self._watch.done()
        return trial


def _read(file: Path) -> list[Ratio]:
    return [Ratio(**json.loads(line)) for line in file.read_text().splitlines()]


def _append(file: Path, ratios: Iterable[Ratio]) -> None:
    with file.open("a") as lines:
        lines.writelines(json.dumps(asdict(ratio)) + "\n" for ratio in ratios)
