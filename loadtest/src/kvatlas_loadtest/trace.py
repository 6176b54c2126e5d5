"""Request traces in the form that the Mooncake project publishes, read strictly.

A line of a trace is one request: when it arrived, how many tokens it had and produced, and one id
for every `TOKENS_PER_ID` tokens of its prompt. Requests that share an id share their whole prefix
up to and including it; the last id of a request stands for what is left over. A line that says
anything else is an error that names the line: a trace read half is a measurement of something else.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

TOKENS_PER_ID = 512
"""Tokens that one id of a published trace stands for."""

SHIPPED = "conversation_slice.jsonl"
"""The trace in the package's data, played when no other is named."""


class TraceError(ValueError):
    """The trace cannot be played; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace.

    Attributes:
        timestamp_ms: arrival, from any origin.
        input_tokens: length of the prompt.
        output_tokens: length of the answer.
        hash_ids: one id per `TOKENS_PER_ID` tokens of the prompt, the last one partly used.
    """

    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The first requests of a trace, by arrival.

    Attributes:
        name: what to call it in a table.
        rows: at least one, sorted by arrival; equal arrivals in the order of the file.
    """

    name: str
    rows: tuple[TraceRow, ...]


def read_trace(path: Path | None, *, requests_max: int) -> Trace:
    """Read the first `requests_max` requests of a trace; None: of the one that is shipped.

    Raises:
        TraceError: the file cannot be read, holds no request, or holds a malformed line among
            those that were asked for.
    """
    name = path.name if path else SHIPPED
    rows: list[TraceRow] = []
    try:
        source = path or files("kvatlas_loadtest") / "data" / SHIPPED
        with source.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if len(rows) == requests_max:
                    break
                if line.strip():
                    rows.append(_read_row(line, where=f"{name}, line {number}"))
    except OSError as error:
        raise TraceError(f"trace {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"trace {path} is no text in UTF-8") from None
    if not rows:
        raise TraceError(f"trace {name} holds no request")
    return Trace(name, tuple(sorted(rows, key=lambda row: row.timestamp_ms)))


def _read_row(line: str, *, where: str) -> TraceRow:
    try:
        document: object = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{where}: no JSON ({error})") from None
    if not isinstance(document, dict):
        raise TraceError(f"{where}: an object is expected")
    fields = cast("dict[str, Any]", document)
    timestamp_ms: object = _field(fields, "timestamp", where=where)
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, (int, float)):
        raise TraceError(f"{where}: timestamp is no number")
    if not 0 <= timestamp_ms < float("inf"):
        raise TraceError(f"{where}: timestamp is {timestamp_ms}, not a time in milliseconds")
    input_tokens = _whole(fields, "input_length", at_least=1, where=where)
    output_tokens = _whole(fields, "output_length", at_least=0, where=where)
    hash_ids = _ids(fields, where=where)
    ids_needed = -(-input_tokens // TOKENS_PER_ID)
    if len(hash_ids) != ids_needed:
        raise TraceError(
            f"{where}: input_length {input_tokens} takes {ids_needed} hash_ids of "
            f"{TOKENS_PER_ID} tokens, there are {len(hash_ids)}"
        )
    return TraceRow(float(timestamp_ms), input_tokens, output_tokens, hash_ids)


def _field(fields: dict[str, Any], name: str, *, where: str) -> object:
    if name not in fields:
        raise TraceError(f"{where}: {name} is missing")
    return fields[name]


def _whole(fields: dict[str, Any], name: str, *, at_least: int, where: str) -> int:
    value = _field(fields, name, where=where)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(f"{where}: {name} is no whole number")
    if value < at_least:
        raise TraceError(f"{where}: {name} is {value}, at least {at_least} is expected")
    return value


def _ids(fields: dict[str, Any], *, where: str) -> tuple[int, ...]:
    value = _field(fields, "hash_ids", where=where)
    if not isinstance(value, list):
        raise TraceError(f"{where}: hash_ids is no list")
    ids = cast("list[object]", value)
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < 1 << 53:
            raise TraceError(f"{where}: hash_ids holds {item!r}, not a whole number from 0")
    return tuple(cast("list[int]", ids))
