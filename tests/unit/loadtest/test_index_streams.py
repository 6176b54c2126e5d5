"""Operation streams as files: read strictly, cut to a part that is a stream itself."""

import itertools
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas_chassis import FatalError, SettingsError
from kvatlas_loadtest.bench.index.opstream import Header, cut_stream, read_header
from kvatlas_loadtest.bench.index.python_baseline import make_index, measure, play
from kvatlas_loadtest.bench.index.streams import Recipe, Stream, replicas_for

HEADER = Header(
    workers=4,
    block_tokens=128,
    id_tokens=512,
    replicas=2,
    capacity=64,
    seed=7,
    span_ns=0,
    records=(0, 0, 0),
    blocks=(0, 0, 0),
    flags=2,
)
RECORDS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=20)
TRACE_LINE = '{"timestamp":0,"input_length":1024,"output_length":1,"hash_ids":[%d,%d]}\n'


def write(path: Path, records: list[tuple[int, int]]) -> Header:
    """A stream whose record i comes at i ns and has so many hashes, all i."""
    counts, blocks = [0, 0, 0], [0, 0, 0]
    body = b""
    for at, (kind, count) in enumerate(records):
        body += struct.pack("<QIIQQ", at, kind, at % 4, count, 0)
        body += struct.pack(f"<{count}Q", *[at] * count)
        counts[kind] += 1
        blocks[kind] += count
    header = replace(
        HEADER,
        span_ns=len(records) - 1,
        records=(counts[0], counts[1], counts[2]),
        blocks=(blocks[0], blocks[1], blocks[2]),
    )
    path.write_bytes(header.packed() + body)
    return header


@given(RECORDS, st.integers(1, 60), st.none() | st.integers(0, 10))
def test_a_part_is_the_longest_beginning_within_the_bounds(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[int, int]],
    block_ops: int,
    removed: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("streams")
    whole, part, expected = folder / "whole", folder / "part", folder / "expected"
    assert write(whole, records) == read_header(whole)
    kept: list[tuple[int, int]] = []
    for record in records:
        longer = [*kept, record]
        over = sum(count for _, count in longer) > block_ops or (
            removed is not None
            and record[0] == 2
            and sum(count for kind, count in longer if kind == 2) > removed
        )
        if kept and over:
            break
        kept = longer
    header = cut_stream(whole, part, block_ops=block_ops, removed_blocks=removed)
    assert header == write(expected, kept)
    assert part.read_bytes() == expected.read_bytes()


def test_what_is_no_stream_is_refused_in_one_line(tmp_path: Path) -> None:
    good = tmp_path / "good"
    write(good, [(1, 3), (0, 3)])
    data = good.read_bytes()
    bad = tmp_path / "bad"
    for spoiled in (b"", data[:100], b"X" + data[1:], data[:8] + b"\2" + data[9:]):
        bad.write_bytes(spoiled)
        with pytest.raises(FatalError, match="is no operation stream"):
            read_header(bad)
    bad.write_bytes(data[:48] + b"\7" + data[49:])
    with pytest.raises(FatalError, match="disagree"):
        read_header(bad)
    with pytest.raises(FatalError, match="cannot read"):
        read_header(tmp_path / "missing")
    for length in (130, 170):  # within a record's fields, and within its hashes
        bad.write_bytes(data[:length])
        with pytest.raises(FatalError, match=r"ends within|is damaged"):
            cut_stream(bad, tmp_path / "part", block_ops=100)


def test_replicas_overflow_the_caches_of_all_workers(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(TRACE_LINE % (0, 1) + TRACE_LINE % (0, 2))
    recipe = Recipe(trace, workers=10, block_size=128, replicas=None, capacity=90, seed=1)
    # 900 blocks are held, 1,200 are wanted; three ids are 12 blocks of 128 tokens, 96 of 16.
    assert replicas_for(recipe, 128) == 100
    assert replicas_for(recipe, 16) == 13
    assert replicas_for(replace(recipe, capacity=1), 16) == 1
    trace.write_text("no json\n")
    with pytest.raises(SettingsError, match=r"kvatlas bench index: .*line 1"):
        replicas_for(recipe, 128)


def test_the_python_baseline_is_played_until_its_time_is_over(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    header = write(path, [(1, 3), (0, 3), (2, 3), (0, 2)])
    index = make_index()
    assert index is not None
    ticks = itertools.count(step=10)
    spent = play(index, path, ns_max=25, clock=lambda: next(ticks))
    assert (spent.ns, spent.blocks, spent.finds_ns) == ([10, 10, 10], [3, 3, 3], [10])
    result = measure(index, Stream("hub", "hub", path, 0.0, header), seconds=60)
    assert result.share == 1
    assert result.window_ms is None
    assert "unpaced" in result.note
