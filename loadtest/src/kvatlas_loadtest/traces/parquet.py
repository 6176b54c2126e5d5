"""Reads and writes traces as Parquet; the only file here that uses pyarrow, which has no types.

Columns are named as the fields of a line of JSON: `timestamp`, `input_length`, `output_length`, and
`hash_ids`, a list, which may be missing. Only one batch of rows is in memory at a time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs] - there are none
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs] - there are none

from kvatlas_loadtest.trace import TraceError
from kvatlas_loadtest.traces.requests import Floats, Ints, Requests

_Arrow = Any
_arrow = cast("Any", pa)
_parquet = cast("Any", pq)


class Batch(NamedTuple):
    """Some rows of a file."""

    timestamps: Floats
    input_lengths: Ints
    output_lengths: Ints
    offsets: Ints
    ids: Ints | None
    """None: the file has no such column."""
    bytes_read: int
    """Share of the file that was read by now, in bytes."""


def read_parquet(path: Path, *, rows: int) -> Iterator[Batch]:
    """Yield the rows of a file, at most `rows` at a time.

    Raises:
        TraceError: it is not a Parquet file, or a column is missing or has another type.
    """
    size = path.stat().st_size
    try:
        file = _parquet.ParquetFile(path)
    except _arrow.ArrowException as error:
        raise TraceError(f"trace {path.name}: not a Parquet file: {error}") from None
    with file:
        names = [name for name in (*_TYPES, "hash_ids") if name in file.schema_arrow.names]
        missing = [name for name in _TYPES if name not in names]
        if missing:
            raise TraceError(f"{path.name}: {missing[0]}: no such column")
        done, total = 0, max(1, file.metadata.num_rows)
        try:
            for batch in file.iter_batches(batch_size=rows, columns=names):
                read = _batch(path.name, batch, done)
                done += batch.num_rows
                yield Batch(*read, size * done // total)
        except _arrow.ArrowException as error:
            raise TraceError(f"{path.name}, after line {done}: {error}") from None


_TYPES = {"timestamp": "float64", "input_length": "int64", "output_length": "int64"}


def _batch(name: str, batch: _Arrow, done: int) -> tuple[Floats, Ints, Ints, Ints, Ints | None]:
    columns: dict[str, Any] = {}
    for column, kind in _TYPES.items():
        array = batch.column(column)
        _whole(name, column, array, done)
        if not (
            _arrow.types.is_integer(array.type)
            or (kind == "float64" and _arrow.types.is_floating(array.type))
        ):
            raise TraceError(
                f"{name}, line {done + 1}: {column}: expected {kind}, not {array.type}"
            )
        columns[column] = np.asarray(array.cast(kind, safe=False).to_numpy(zero_copy_only=False))
    offsets = np.zeros(batch.num_rows + 1, dtype=np.int64)
    ids: Ints | None = None
    if "hash_ids" in batch.schema.names:
        lists = batch.column("hash_ids")
        _whole(name, "hash_ids", lists, done)
        if not (_arrow.types.is_list(lists.type) or _arrow.types.is_large_list(lists.type)) or not (
            _arrow.types.is_integer(lists.type.value_type) or lists.type.value_type == _arrow.null()
        ):
            raise TraceError(
                f"{name}, line {done + 1}: hash_ids: expected a list of int64, not {lists.type}"
            )
        values = lists.flatten()
        _whole(name, "hash_ids", values, done)
        ids = np.asarray(values.cast("int64").to_numpy(zero_copy_only=False), dtype=np.int64)
        np.cumsum(lists.value_lengths().to_numpy(zero_copy_only=False), out=offsets[1:])
    return (columns["timestamp"], columns["input_length"], columns["output_length"], offsets, ids)


def _whole(name: str, column: str, array: _Arrow, done: int) -> None:
    if array.null_count:
        raise TraceError(f"{name}, after line {done}: {column}: a value is missing")


class ParquetWriter:
    """Writes requests to a Parquet file, part by part."""

    def __init__(self, path: Path) -> None:
        self._schema = _arrow.schema(
            [
                ("timestamp", _arrow.int64()),
                ("input_length", _arrow.int64()),
                ("output_length", _arrow.int64()),
                ("hash_ids", _arrow.list_(_arrow.int64())),
            ]
        )
        self._file = _parquet.ParquetWriter(path, self._schema)

    def write(self, part: Requests) -> None:
        """Write the requests after those written before."""
        lists = _arrow.ListArray.from_arrays(
            _arrow.array(part.offsets, type=_arrow.int32()), _arrow.array(part.ids)
        )
        columns = [part.timestamps_ms.astype(np.int64), part.input_tokens, part.output_tokens]
        arrays = [*(_arrow.array(column) for column in columns), lists]
        self._file.write_table(_arrow.table(arrays, schema=self._schema))

    def close(self) -> None:
        """Write the file's footer; it cannot be read without one."""
        self._file.close()
