"""Writes traces part by part, and any result so that no half of it ever has the final name."""

import contextlib
import os
import tempfile
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import numpy as np

from kvatlas_chassis import FatalError
from kvatlas_loadtest.traces.parquet import ParquetWriter
from kvatlas_loadtest.traces.requests import Requests


class Writer(Protocol):
    """Appends requests to a trace."""

    def write(self, part: Requests) -> None:
        """Write the requests after those written before; arrivals are whole milliseconds."""
        ...


@contextlib.contextmanager
def replaced(file: Path) -> Generator[Path]:
    """Yield a draft beside `file`, which takes its name at the end; after an error it is deleted.

    Raises:
        FatalError: the draft cannot be written or renamed.
    """
    try:
        handle, name = tempfile.mkstemp(
            dir=file.parent, prefix=f".{file.name}.", suffix=file.suffix
        )
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            umask = os.umask(0)
            os.umask(umask)
            draft.chmod(0o666 & ~umask)
            draft.replace(file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FatalError(f"kvatlas trace: cannot write {file}: {error.strerror or error}") from None


@contextlib.contextmanager
def trace_writer(file: Path) -> Generator[Writer]:
    """Open a trace for writing, in the format of its name; it appears whole or not at all.

    Raises:
        FatalError: it cannot be written.
    """
    with replaced(file) as draft:
        if file.suffix.lower() == ".parquet":
            writer = ParquetWriter(draft)
            with contextlib.closing(writer):
                yield writer
        else:
            kind = _CsvWriter if file.suffix.lower() == ".csv" else _JsonWriter
            with draft.open("wb") as stream:
                yield kind(stream)


_LINES_AT_ONCE = 4096
_COMMA = ord(",")


class _JsonWriter:
    """Encodes the ids of many requests as one list and cuts the text: a list each is slower."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, part: Requests) -> None:
        for first in range(0, len(part), _LINES_AT_ONCE):
            rows = slice(first, first + _LINES_AT_ONCE)
            bounds = part.offsets[first : first + _LINES_AT_ONCE + 1]
            text = msgspec.json.encode(part.ids[bounds[0] : bounds[-1]].tolist())
            # Id k stands between the commas k and k + 1, if the brackets count as such.
            commas = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _COMMA)
            commas = np.concatenate(([0], commas, [len(text) - 1]))
            cuts: list[int] = commas[bounds - bounds[0]].tolist()
            lines = [
                b'{"timestamp":%d,"input_length":%d,"output_length":%d,"hash_ids":[%b]}\n'
                % (time, tokens, output, text[begin + 1 : end])
                for time, tokens, output, begin, end in zip(
                    part.timestamps_ms[rows].astype(np.int64).tolist(),
                    part.input_tokens[rows].tolist(),
                    part.output_tokens[rows].tolist(),
                    cuts[:-1],
                    cuts[1:],
                    strict=True,
                )
            ]
            self._stream.write(b"".join(lines))


_CSV_ORIGIN = datetime(2000, 1, 1, tzinfo=UTC)


class _CsvWriter:
    """Times count from the first second of 2000, since the format wants a date."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        stream.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")

    def write(self, part: Requests) -> None:
        rows = zip(
            part.timestamps_ms.tolist(),
            part.input_tokens.tolist(),
            part.output_tokens.tolist(),
            strict=True,
        )
        text = "".join(
            f"{_CSV_ORIGIN + timedelta(milliseconds=time):%Y-%m-%d %H:%M:%S.%f},{tokens},{output}\n"
            for time, tokens, output in rows
        )
        self._stream.write(text.encode())
