"""Reads a dump's Arrow stream, slice by slice; the only file that uses pyarrow, which has no types.

Arrow's reader pulls and a gRPC stream pushes. Only one slice and one batch are in memory at a time.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs] - there are none

from kvatlas_verify.worker_state import Hashes

_arrow = cast("Any", pa)


class Unreadable(Exception):  # noqa: N818 - named for what it is
    """The bytes are not a dump that this release can read."""


class Row(NamedTuple):
    """One row of a dump: a worker's tier, or a part of it."""

    worker_id: int
    dp_rank: int
    tier: str
    epoch: int
    event_id: int
    blocks: int
    digest: int
    sequence_hashes: Hashes
    """Ascending; empty if only digests were asked for."""


def rows(slices: Iterator[bytes]) -> Iterator[Row]:
    """Yield the rows of a stream that comes in slices.

    Raises:
        Unreadable: it is not a dump. Errors of `slices` pass through.
    """
    try:
        with _arrow.ipc.open_stream(_Slices(slices)) as reader:
            for batch in reader:
                lists = batch["sequence_hashes"]
                sets = (lists[number].values.to_numpy() for number in range(batch.num_rows))
                columns = [batch[name].to_pylist() for name in Row._fields[:-1]]
                yield from map(Row._make, zip(*columns, sets, strict=True))
    except (_arrow.ArrowInvalid, KeyError) as error:
        raise Unreadable(str(error)) from error


class _Slices:
    """A file, for Arrow, over the slices."""

    closed = False

    def __init__(self, slices: Iterator[bytes]) -> None:
        self._slices = slices
        self._rest = b""

    def read(self, size: int) -> bytes:
        parts = [self._rest]
        length = len(self._rest)
        while length < size and (part := next(self._slices, None)) is not None:
            parts.append(part)
            length += len(part)
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        pass
