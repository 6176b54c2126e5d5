"""Operation streams as files: reads their header, and cuts off their first part.

An operation stream is the merged timeline of a fleet, in little-endian: a header of 128 bytes, then
records of 32 bytes, each with its hashes. The native generator makes and plays such streams. A
design that is too slow for a whole stream is measured on its first part.
"""

import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from kvatlas_chassis import FatalError

MAGIC = b"KVOPS\0\0\0"
VERSION = 1
RECORD = struct.Struct("<QIIQQ")
"""A record: time in ns, kind, worker, number of hashes, parent."""

_HEADER = struct.Struct("<8s6I12Q")
_HASH_BYTES = 8
_NO_HUB = 2


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a stream.

    Attributes:
        records: numbers of queries, stores and removes.
        blocks: numbers of blocks in the queries, the stores and the removes.
        span_ns: time of the last record.
        flags: 1 = workers assigned by request, 2 = hub ids left out.
    """

    workers: int
    block_tokens: int
    id_tokens: int
    replicas: int
    capacity: int
    seed: int
    span_ns: int
    records: tuple[int, int, int]
    blocks: tuple[int, int, int]
    flags: int

    @property
    def block_ops(self) -> int:
        """Number of blocks queried, stored and removed."""
        return sum(self.blocks)

    @property
    def without_hubs(self) -> bool:
        """Whether ids that occur in very many prompts were left out."""
        return bool(self.flags & _NO_HUB)

    def packed(self) -> bytes:
        """The header as bytes."""
        return _HEADER.pack(
            MAGIC,
            *(VERSION, _HEADER.size, self.workers, self.block_tokens, self.id_tokens),
            *(self.replicas, self.capacity, self.seed, sum(self.records), self.span_ns),
            *(*self.records, *self.blocks, self.flags, 0),
        )


def read_header(path: Path) -> Header:
    """The header of a stream.

    Raises:
        FatalError: the file cannot be read or is no operation stream of version 1.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_HEADER.size)
    except OSError as error:
        raise FatalError(f"kvatlas bench: cannot read {path}: {error.strerror}") from None
    if len(data) < _HEADER.size:
        raise FatalError(f"kvatlas bench: {path} is no operation stream: it is too short")
    magic, version, size, *fields = _HEADER.unpack(data)
    if (magic, version, size) != (MAGIC, VERSION, _HEADER.size):
        raise FatalError(f"kvatlas bench: {path} is no operation stream of version {VERSION}")
    workers, block_tokens, id_tokens, replicas, capacity, seed, total, span_ns, *rest = fields
    queries, stores, removes, *blocks, flags, _ = rest
    if total != queries + stores + removes:
        raise FatalError(f"kvatlas bench: {path}: the header's numbers of records disagree")
    return Header(
        workers=workers,
        block_tokens=block_tokens,
        id_tokens=id_tokens,
        replicas=replicas,
        capacity=capacity,
        seed=seed,
        span_ns=span_ns,
        records=(queries, stores, removes),
        blocks=(blocks[0], blocks[1], blocks[2]),
        flags=flags,
    )


def cut_stream(
    source: Path, target: Path, *, block_ops: int, removed_blocks: int | None = None
) -> Header:
    """Write the first part of a stream as a stream of its own.

    Args:
        source: the stream.
        target: where the part goes.
        block_ops: the part ends before the record that would exceed as many; it has one at least.
        removed_blocks: it also ends before more blocks than this are removed; None: no such bound.

    Raises:
        FatalError: a file cannot be read or written, or the stream is damaged.
    """
    whole = read_header(source)
    records, blocks, span_ns = [0, 0, 0], [0, 0, 0], 0
    try:
        with (
            source.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            at = _HEADER.size
            for _ in range(sum(whole.records)):
                time_ns, kind, count = _fields(data, at)
                end = at + RECORD.size + _HASH_BYTES * count
                over = sum(blocks) + count > block_ops or (
                    removed_blocks is not None
                    and kind == len(blocks) - 1
                    and blocks[kind] + count > removed_blocks
                )
                if over and sum(records):
                    break
                if end > len(data):
                    raise FatalError(f"kvatlas bench: {source} ends within a record")
                records[kind] += 1
                blocks[kind] += count
                span_ns, at = time_ns, end
            header = replace(
                whole,
                span_ns=span_ns,
                records=(records[0], records[1], records[2]),
                blocks=(blocks[0], blocks[1], blocks[2]),
            )
            with target.open("wb") as out:
                out.write(header.packed())
                out.write(data[_HEADER.size : at])
    except OSError as error:
        raise FatalError(f"kvatlas bench: cannot cut {source}: {error.strerror}") from None
    except (struct.error, IndexError):
        raise FatalError(f"kvatlas bench: {source} is damaged") from None
    return header


def _fields(data: mmap.mmap, at: int) -> tuple[int, int, int]:
    """Time in ns, kind and number of hashes of the record at an offset."""
    time_ns, kind, _, count, _ = RECORD.unpack_from(data, at)
    return time_ns, kind, count
