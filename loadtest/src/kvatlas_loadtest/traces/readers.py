"""Reads traces in parts: Mooncake JSONL, Parquet with the same columns, CSV as Azure publishes it.

The format follows from the file's name. Whatever does not fit is an error that names line and field,
since figures of half a trace look like figures of a whole one. A part has about `_PART_IDS` ids, so
memory does not grow with the file.
"""

import csv
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import numpy as np

from kvatlas_loadtest.trace import TraceError
from kvatlas_loadtest.traces.parquet import read_parquet
from kvatlas_loadtest.traces.requests import Ints, Requests, offsets_of

Told = Callable[[int], None]
"""Is told how many bytes of the file have been read so far."""

_PART_IDS = 1 << 18
_PART_REQUESTS = 1 << 16
_LINE_BYTES_MAX = 1 << 24
_EXACT = 1 << 53

_Whole = Annotated[int, msgspec.Meta(ge=0, lt=_EXACT)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1, lt=_EXACT)]
    output_length: _Whole
    hash_ids: list[_Whole]


def read_parts(
    path: Path, *, tokens_per_id: int, told: Told = lambda _done: None
) -> Iterator[Requests]:
    """Yield the requests of a trace, part by part.

    Raises:
        TraceError: the file cannot be read, holds no request, or a line or a field is wrong.
    """
    reader = {".csv": _read_csv, ".parquet": _read_parquet}.get(path.suffix.lower(), _read_jsonl)
    before = -math.inf
    empty = True
    try:
        for part in reader(path, told):
            _check(part, path.name, before, tokens_per_id)
            before = float(part.timestamps_ms[-1])
            empty = False
            yield part
    except OSError as error:
        raise TraceError(f"trace {path}: {error.strerror or error}") from None
    except csv.Error as error:
        raise TraceError(f"trace {path.name}: {error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"trace {path} is no text in UTF-8") from None
    if empty:
        raise TraceError(f"trace {path.name} holds no request")


def _check(part: Requests, name: str, before: float, tokens_per_id: int) -> None:
    """Arrivals are sorted, and there are as many ids as the prompt takes."""
    earlier = np.concatenate(([before], part.timestamps_ms[:-1]))
    early = np.flatnonzero(part.timestamps_ms < earlier)
    needed = -(-part.input_tokens // tokens_per_id)
    odd = np.flatnonzero(part.blocks != needed) if not part.lengths_only else early[:0]
    first = min((int(found[0]) for found in (early, odd) if len(found)), default=None)
    if first is None:
        return
    where = f"{name}, line {part.lines[first]}"
    if first in early:
        raise TraceError(
            f"{where}: timestamp: {part.timestamps_ms[first]:.15g} is before the previous request's "
            f"{earlier[first]:.15g}; sort the trace by timestamp"
        )
    raise TraceError(
        f"{where}: hash_ids: input_length {part.input_tokens[first]} takes {needed[first]} ids of "
        f"{tokens_per_id} tokens (--tokens-per-id), there are {part.blocks[first]}"
    )


@dataclass(slots=True)
class _Columns:
    """Collects requests read one by one."""

    lengths_only: bool
    timestamps_ms: list[float] = field(default_factory=list[float])
    input_tokens: list[int] = field(default_factory=list[int])
    output_tokens: list[int] = field(default_factory=list[int])
    blocks: list[int] = field(default_factory=list[int])
    ids: list[int] = field(default_factory=list[int])
    lines: list[int] = field(default_factory=list[int])

    @property
    def full(self) -> bool:
        return len(self.ids) >= _PART_IDS or len(self.lines) >= _PART_REQUESTS

    def requests(self) -> Requests:
        return Requests(
            np.array(self.timestamps_ms, dtype=np.float64),
            np.array(self.input_tokens, dtype=np.int64),
            np.array(self.output_tokens, dtype=np.int64),
            offsets_of(np.array(self.blocks, dtype=np.int64)),
            np.array(self.ids, dtype=np.int64),
            np.array(self.lines, dtype=np.int64),
            self.lengths_only,
        )


def _read_jsonl(path: Path, told: Told) -> Iterator[Requests]:
    decode = msgspec.json.Decoder(_Line).decode
    columns = _Columns(lengths_only=False)
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file, path.name), start=1):
            if line.isspace():
                continue
            try:
                row = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise TraceError(_malformed(error, f"{path.name}, line {number}", line)) from None
            columns.timestamps_ms.append(row.timestamp)
            columns.input_tokens.append(row.input_length)
            columns.output_tokens.append(row.output_length)
            columns.blocks.append(len(row.hash_ids))
            columns.ids += row.hash_ids
            columns.lines.append(number)
            if columns.full:
                yield columns.requests()
                told(file.tell())
                columns = _Columns(lengths_only=False)
        told(file.tell())
    if columns.lines:
        yield columns.requests()


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    for number, line in enumerate(iter(partial(file.readline, _LINE_BYTES_MAX + 1), b""), start=1):
        if len(line) > _LINE_BYTES_MAX:
            raise TraceError(f"{name}, line {number} is longer than {_LINE_BYTES_MAX} bytes")
        yield line


def _malformed(error: Exception, where: str, line: bytes) -> str:
    """Name the field, as in `hash_ids[1]: Expected …`."""
    text, _, place = str(error).partition(" - at `$")
    if isinstance(error, msgspec.ValidationError):
        name = place.removesuffix("`").removeprefix(".")
        return f"{where}: {name}: {text}" if name else f"{where}: {text}"
    if not line.endswith(b"\n"):
        return f"{where}: the last line is truncated: {text}"
    return f"{where}: {text}"


_CSV_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _read_csv(path: Path, told: Told) -> Iterator[Requests]:
    columns = _Columns(lengths_only=True)
    with path.open("rb") as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        rows = csv.reader(text)
        header = next(rows, None) or list[str]()
        missing = [name for name in _CSV_FIELDS if name not in header]
        if header and missing:
            raise TraceError(f"{path.name}, line 1: {missing[0]}: no such column")
        places = [header.index(name) for name in _CSV_FIELDS] if header else []
        for row in rows:
            if not row:
                continue
            where = f"{path.name}, line {rows.line_num}"
            if len(row) != len(header):
                raise TraceError(f"{where}: {len(row)} fields, the header has {len(header)}")
            time, context, generated = (row[place] for place in places)
            columns.timestamps_ms.append(_time_ms(time, where))
            columns.input_tokens.append(_tokens(context, 1, f"{where}: {_CSV_FIELDS[1]}"))
            columns.output_tokens.append(_tokens(generated, 0, f"{where}: {_CSV_FIELDS[2]}"))
            columns.blocks.append(0)
            columns.lines.append(rows.line_num)
            if columns.full:
                yield columns.requests()
                told(file.tell())
                columns = _Columns(lengths_only=True)
        told(file.tell())
    if columns.lines:
        yield columns.requests()


def _time_ms(text: str, where: str) -> float:
    """Milliseconds of a date, which may have seven digits after the point, or of plain seconds."""
    whole, point, fraction = text.partition(".")
    zone = fraction.lstrip("0123456789")
    digits = fraction.removesuffix(zone)
    try:
        if whole.isdecimal():
            return float(text) * 1_000
        at = datetime.fromisoformat(whole + zone)
        part = float(f"0.{digits}") * 1_000 if point else 0.0
    except ValueError:
        raise TraceError(f"{where}: TIMESTAMP: not a date and no seconds: {text!r}") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000 + part


def _tokens(text: str, least: int, where: str) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text) < _EXACT:
        raise TraceError(f"{where}: expected a whole number from {least}, not {text!r}")
    return int(text)


def _read_parquet(path: Path, told: Told) -> Iterator[Requests]:
    """Check the columns, which have Parquet's own types already."""
    done = 0
    for batch in read_parquet(path, rows=_PART_REQUESTS // 8):
        lines = np.arange(done + 1, done + 1 + len(batch.timestamps))
        done += len(lines)
        ids = batch.ids if batch.ids is not None else np.zeros(0, dtype=np.int64)
        offsets = batch.offsets if batch.ids is not None else np.zeros(len(lines) + 1, np.int64)
        bounds: tuple[tuple[str, Ints, int], ...] = (
            ("input_length", batch.input_lengths, 1),
            ("output_length", batch.output_lengths, 0),
        )
        times_wrong = ~(np.isfinite(batch.timestamps) & (batch.timestamps >= 0))
        found = [(int(np.argmax(times_wrong)), "timestamp: expected a finite number from 0")]
        found = found if times_wrong.any() else []
        for name, values, least in bounds:
            wrong = (values < least) | (values >= _EXACT)
            if wrong.any():
                found.append(
                    (int(np.argmax(wrong)), f"{name}: expected a whole number from {least}")
                )
        wrong = (ids < 0) | (ids >= _EXACT)
        if wrong.any():
            at = int(np.argmax(wrong))
            row = int(np.searchsorted(offsets, at, side="right")) - 1
            found.append((row, f"hash_ids[{at - offsets[row]}]: expected a whole number from 0"))
        if found:
            row, text = min(found)
            raise TraceError(f"{path.name}, line {lines[row]}: {text}")
        yield Requests(
            batch.timestamps,
            batch.input_lengths,
            batch.output_lengths,
            offsets,
            ids,
            lines,
            batch.ids is None,
        )
        told(batch.bytes_read)
