"""`kvatlas trace synthesize`: writes a new trace that is like another one, longer or changed."""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvatlas_chassis import SettingsError
from kvatlas_loadtest.flags import Parser, add_value, count, existing_file, positive
from kvatlas_loadtest.trace import TOKENS_PER_ID
from kvatlas_loadtest.traces.analysis import Analysis
from kvatlas_loadtest.traces.analyze import shown_bytes
from kvatlas_loadtest.traces.draws import Knobs
from kvatlas_loadtest.traces.models import (
    MODELS,
    Source,
    analysis_of,
    compare,
    synthesize,
    try_model,
    with_own_ids,
)
from kvatlas_loadtest.traces.readers import read_parts
from kvatlas_loadtest.traces.report import fidelity_table
from kvatlas_loadtest.traces.requests import Requests, joined
from kvatlas_loadtest.traces.writers import trace_writer

_AUTO = "auto"
_FACTOR_MAX = 10_000.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command's flags.

    Attributes:
        requests: number to write; None: as many as the source has.
        model: one of `MODELS`, or "auto" for the more faithful one.
        check: compare both models with the source.
    """

    source: Path
    out: Path | None
    requests: int | None
    seed: int
    model: str
    tokens_per_id: int
    check: bool
    knobs: Knobs


def run(argv: Sequence[str]) -> None:
    """Parse the flags, learn from the source, write the new trace.

    Raises:
        FatalError: the flags are wrong, or the file cannot be written.
        TraceError: the source cannot be read, or a line of it is wrong.
    """
    options = _options(argv)
    console = Console(width=None if sys.stdout.isatty() else 110)
    source = _read(options.source, options.tokens_per_id)
    found = analysis_of(source)
    tried: dict[str, Analysis] = {}
    if options.check or options.model == _AUTO:
        tried = _tried(console, source, options.seed)
    if options.check:
        console.print(fidelity_table(found, tried))
    if options.out is None:
        return
    model = options.model
    if model == _AUTO:
        model = _most_faithful(console, found, tried)
    _write(console, source, options.out, model, options)


def _read(file: Path, tokens_per_id: int) -> Source:
    with shown_bytes(file) as told:
        requests = joined(list(read_parts(file, tokens_per_id=tokens_per_id, told=told)))
    if requests.lengths_only:
        requests = with_own_ids(requests, tokens_per_id=tokens_per_id)
    return Source(file.name, requests, tokens_per_id)


def _tried(console: Console, source: Source, seed: int) -> dict[str, Analysis]:
    tried: dict[str, Analysis] = {}
    for model in MODELS:
        with console.status(f"trying the model {model}"):
            tried[model] = try_model(source, model, seed=seed)
    return tried


def _most_faithful(console: Console, source: Analysis, tried: dict[str, Analysis]) -> str:
    """Choose the model whose LRU curve is nearest to the source's, and say so."""
    off = {model: abs(compare(source, new).lru_points) for model, new in tried.items()}
    best = min(MODELS, key=lambda model: off[model])
    told = ", ".join(f"{model} {points:.1f}" for model, points in off.items())
    console.print(
        f"model: {best}; LRU hit ratios are off by at most (points): {told}", highlight=False
    )
    return best


def _write(console: Console, source: Source, file: Path, model: str, options: Options) -> None:
    wanted = len(source.requests) if options.requests is None else options.requests
    parts = synthesize(source, model, count=wanted, seed=options.seed, knobs=options.knobs)
    began = time.monotonic()
    with trace_writer(file) as writer:
        for part in _shown(parts, wanted, file.name):
            writer.write(part)
    seconds = time.monotonic() - began
    console.print(
        f"{file}: {wanted:,} requests in {seconds:.2f} s, {wanted / seconds:,.0f} requests/s",
        highlight=False,
        soft_wrap=True,
    )


def _shown(parts: Iterable[Requests], total: int, name: str) -> Iterable[Requests]:
    """Yield the parts, with a progress bar on a terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        task = progress.add_task(f"writing {name}", total=total)
        for part in parts:
            yield part
            progress.advance(task, len(part))


def _options(argv: Sequence[str]) -> Options:
    words = _parser().parse_args(argv)
    knobs = Knobs(
        prefix_len_multiplier=words.prefix_len_multiplier,
        prefix_root_multiplier=words.prefix_root_multiplier,
        prompt_len_multiplier=words.prompt_len_multiplier,
        osl_multiplier=words.osl_multiplier,
        speedup_ratio=words.speedup_ratio,
    )
    out: Path | None = words.out
    if out is None and not words.check:
        raise SettingsError("kvatlas trace synthesize: --out is missing (or --check)")
    if out is not None and not out.parent.is_dir():
        raise SettingsError(f"kvatlas trace synthesize: no folder {str(out.parent)!r}")
    if out is not None and out.resolve() == words.source.resolve():
        raise SettingsError(f"kvatlas trace synthesize: {out} is the source itself")
    return Options(
        source=words.source,
        out=out,
        requests=words.requests,
        seed=words.seed,
        model=words.model,
        tokens_per_id=words.tokens_per_id,
        check=words.check,
        knobs=knobs,
    )


def _parser() -> Parser:
    parser = Parser(
        prog="kvatlas trace synthesize",
        description="Write a new trace with the lengths, prefixes and times of another one.",
        epilog="Formats follow from the names: .jsonl, .parquet, .csv (lengths only).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    text = "the trace to learn from"
    add("--from", dest="source", type=existing_file, metavar="FILE", help=text, required=True)
    add("--out", type=Path, metavar="FILE", help="file to write; it appears whole or not at all")
    text = "number of requests to write (default: as many as the source has)"
    add_value(add, "--requests", count, "N", text)
    add_value(add, "--seed", _seed, "N", "the same seed gives the same trace", default=0)
    text = "markov: independent walks; sessions: turns that follow each other; auto: the one whose LRU hit ratios are nearer to the source's (default: auto)"
    add("--model", choices=(_AUTO, *MODELS), default=_AUTO, help=text)
    for flag, text in _FACTORS.items():
        add_value(add, flag, _factor, "X", text, default=1.0)
    text = "number of copies of the shared prefixes; each request or session takes one by chance"
    add_value(add, "--prefix-root-multiplier", count, "N", text, default=1)
    text = "number of tokens that one hash id stands for"
    add_value(add, "--tokens-per-id", count, "N", text, default=TOKENS_PER_ID)
    text = "print how near both models come to the source, with all multipliers at 1"
    add("--check", action="store_true", help=text)
    return parser


_FACTORS = {
    "--prefix-len-multiplier": "factor on the lengths of shared prefixes, in blocks",
    "--prompt-len-multiplier": "factor on the tokens of each prompt that no other prompt shares",
    "--osl-multiplier": "factor on the tokens of the answers",
    "--speedup-ratio": "divisor of all times",
}


def _factor(text: str) -> float:
    value = positive(text)
    if not 1 / _FACTOR_MAX <= value <= _FACTOR_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not between {1 / _FACTOR_MAX:g} and 10,000")
    return value


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)
