"""Traces for tests, written as files, and an LRU cache as plain as can be."""

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs] - there are none
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs] - there are none

Paths = Sequence[Sequence[int]]


def write_paths(file: Path, paths: Paths, *, step_ms: float = 1.0, tail: int = 100) -> Path:
    """Write a trace with these hash ids; the last id of a prompt stands for `tail` tokens."""
    file.write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": at * step_ms,
                    "input_length": 512 * (len(path) - 1) + tail,
                    "output_length": 7,
                    "hash_ids": list(path),
                }
            )
            + "\n"
            for at, path in enumerate(paths)
        )
    )
    return file


def write_parquet(file: Path, rows: Sequence[dict[str, object]]) -> Path:
    """Write rows as Parquet, with the types that follow from their values."""
    cast("Any", pq).write_table(cast("Any", pa).Table.from_pylist(rows), file)
    return file


def lru_hits(paths: Iterable[Sequence[int]], capacity: int) -> int:
    """Leading hits of an LRU cache that evicts a request's last blocks before its first ones."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for path in paths:
        for block in path:
            if block not in held:
                break
            hits += 1
        for block in reversed(path):
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity:
            held.popitem(last=False)
    return hits
