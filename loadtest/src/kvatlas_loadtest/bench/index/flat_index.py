"""Measurements of the flat index alone: forms of answers at half load, and memory when fresh."""

from collections.abc import Mapping

from kvatlas_loadtest.bench.index.program import Program, Trial
from kvatlas_loadtest.bench.index.progress import ProgressListener
from kvatlas_loadtest.bench.index.race import quantiles
from kvatlas_loadtest.bench.index.results import FLAT, StreamResults
from kvatlas_loadtest.bench.index.streams import Stream, before_evictions
from kvatlas_loadtest.bench.index.targets import ANSWERS, Answer, answer_rows, fresh_row
from kvatlas_loadtest.bench.rows import Row

PATIENCE_S = 120.0


def answers_at_half_load(
    program: Program, results: StreamResults, *, trials: int, watch: ProgressListener
) -> list[Row]:
    """Rows of look-ups by form of answer, in turn; empty if the flat index did not keep up."""
    flat = results.result(FLAT)
    if flat is None or flat.window_ms is None or flat.share < 1:
        return []
    watch.expect(trials * len(ANSWERS))
    stream = results.stream
    played: dict[Answer, list[Trial]] = {answer: [] for answer in ANSWERS}
    for _ in range(trials):
        for answer in ANSWERS:
            watch.now(f"{FLAT}: half load, {answer.form}, limit {answer.limit or 'none'}")
            trial = program.play(
                stream.path,
                FLAT,
                2 * flat.window_ms,
                *("--from-share", str(stream.from_share), "--answers", answer.form),
                *(("--limit", str(answer.limit)) if answer.limit else ()),
                timeout_s=PATIENCE_S,
            )
            if trial is not None:
                played[answer].append(trial)
            watch.done()
    measured: dict[Answer, Mapping[str, float]] = {}
    for answer, kept in played.items():
        figures = quantiles(kept, lambda trial: trial.lookup_us, ("p50", "p99"))
        if figures is not None:
            measured[answer] = figures
    return answer_rows(results, measured)


def fresh_memory(program: Program, results: StreamResults, *, watch: ProgressListener) -> list[Row]:
    """Bytes a membership before anything is removed; nothing if it could not be measured."""
    if results.result(FLAT) is None:
        return []
    watch.expect(1)
    watch.now(f"{FLAT}: bytes a membership, fresh")
    stream: Stream = results.stream
    trial = program.play(before_evictions(stream), FLAT, 0, timeout_s=PATIENCE_S)
    watch.done()
    return (
        [] if trial is None else [fresh_row(results, trial.bytes_per_membership, trial.memberships)]
    )
