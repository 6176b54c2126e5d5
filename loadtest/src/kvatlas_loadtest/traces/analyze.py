"""`kvatlas trace analyze`: figures of one trace as a table, as JSON, as pictures."""

import contextlib
import json
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from kvatlas_chassis import SettingsError
from kvatlas_loadtest.flags import Parser, add_value, count, existing_file
from kvatlas_loadtest.trace import TOKENS_PER_ID
from kvatlas_loadtest.traces.analysis import Analysis, analyze
from kvatlas_loadtest.traces.pictures import write_html, write_png
from kvatlas_loadtest.traces.readers import Told, read_parts
from kvatlas_loadtest.traces.report import analysis_table
from kvatlas_loadtest.traces.writers import replaced

_BAR_FROM_BYTES = 1 << 24


def run(argv: Sequence[str]) -> None:
    """Parse the flags, read the trace once, print and write its figures.

    Raises:
        FatalError: the flags are wrong, or a file cannot be written.
        TraceError: the trace cannot be read, or a line of it is wrong.
    """
    words = _parser().parse_args(argv)
    outputs: list[Path] = [file for file in (words.json, words.html, words.png) if file]
    for file in outputs:
        if file.resolve() == words.file.resolve():
            raise SettingsError(f"kvatlas trace analyze: {file} is the trace itself")
        if not file.parent.is_dir():
            raise SettingsError(f"kvatlas trace analyze: no folder {str(file.parent)!r}")
    analysis = analyze_file(words.file, tokens_per_id=words.tokens_per_id)
    Console(width=None if sys.stdout.isatty() else 100).print(analysis_table(analysis))
    if words.json is not None:
        with replaced(words.json) as draft:
            draft.write_text(json.dumps(analysis.document(), indent=2) + "\n")
    if words.html is not None:
        write_html(analysis, words.html)
    if words.png is not None:
        write_png(analysis, words.png)


def analyze_file(file: Path, *, tokens_per_id: int) -> Analysis:
    """Analyse a file, with a progress bar on stderr if it is large.

    Raises:
        TraceError: the trace cannot be read, or a line of it is wrong.
    """
    with shown_bytes(file) as told:
        parts = read_parts(file, tokens_per_id=tokens_per_id, told=told)
        return analyze(parts, name=file.name, tokens_per_id=tokens_per_id)


@contextlib.contextmanager
def shown_bytes(file: Path) -> Generator[Told]:
    """A progress bar of the bytes read from a file."""
    size = file.stat().st_size
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=size < _BAR_FROM_BYTES or not sys.stderr.isatty(),
    ) as progress:
        task = progress.add_task(f"reading {file.name}", total=size)
        yield lambda done: progress.update(task, completed=done)


def _parser() -> Parser:
    parser = Parser(
        prog="kvatlas trace analyze",
        description="Print lengths, hit ratios by cache size, reuse and prefix tree of a trace.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    text = (
        "the trace: Mooncake JSONL, .parquet with the same columns, or .csv as Azure publishes it"
    )
    add("file", type=existing_file, metavar="FILE", help=text)
    add("--json", type=Path, metavar="FILE", help="file to write the figures to, as JSON")
    add(
        "--html", type=Path, metavar="FILE", help="file to write table and pictures to, as one page"
    )
    add("--png", type=Path, metavar="FILE", help="file to write the pictures to")
    text = "number of tokens that one hash id stands for"
    add_value(add, "--tokens-per-id", count, "N", text, default=TOKENS_PER_ID)
    return parser
