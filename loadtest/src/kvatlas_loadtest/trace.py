"""Reads request traces in the format of the Mooncake project, strictly.

Each line is one request: its arrival, its numbers of input and output tokens, and one id for every
`TOKENS_PER_ID` tokens of its prompt. Requests that share an id share their whole prefix up to and
including it; the last id stands for the rest of the prompt. Any other line is an error that names
the line, because a trace read in part would measure something else.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

TOKENS_PER_ID = 512
"""Number of tokens that one id of a published trace stands for."""

SHIPPED = "conversation_slice.jsonl"
"""The trace in the package's data, played by default."""


class TraceError(ValueError):
    """The trace cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace.

    Attributes:
        timestamp_ms: arrival, counted from any origin.
        input_tokens: length of the prompt.
        output_tokens: length of the answer.
        hash_ids: one id per `TOKENS_PER_ID` tokens of the prompt; the last may stand for fewer.
    """

    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The first requests of a trace, by arrival.

    Attributes:
        name: its name in tables.
        rows: at least one, sorted by arrival; equal arrivals in the order of the file.
    """

    name: str
    rows: tuple[TraceRow, ...]


def read_trace(path: Path | None, *, requests_max: int) -> Trace:
    """Read the first `requests_max` requests of a trace; None: of the shipped one.

    Raises:
        TraceError: the file cannot be read, has no request, or one of these lines is malformed.
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


class _Line(BaseModel, strict=True):
    timestamp: float = Field(ge=0, allow_inf_nan=False)
    input_length: int = Field(ge=1)
    output_length: int = Field(ge=0)
    hash_ids: tuple[Annotated[int, Field(ge=0, lt=1 << 53)], ...]


def _read_row(line: str, *, where: str) -> TraceRow:
    try:
        read = _Line.model_validate_json(line)
    except ValidationError as errors:
        error = errors.errors()[0]
        place = "".join(f"{part}: " for part in error["loc"])
        raise TraceError(f"{where}: {place}{error['msg']}, not {error['input']!r}") from None
    tokens, ids = read.input_length, len(read.hash_ids)
    ids_needed = -(-tokens // TOKENS_PER_ID)
    if ids != ids_needed:
        raise TraceError(
            f"{where}: input_length {tokens} takes {ids_needed} hash_ids of {TOKENS_PER_ID} tokens, "
            f"there are {ids}"
        )
    return TraceRow(read.timestamp, tokens, read.output_length, read.hash_ids)
