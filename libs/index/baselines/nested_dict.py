"""The nested dictionaries in Python: worker → chunk hash → sequence hashes.

Stands for the simplest index there is, as the first step of NVIDIA Dynamo's "Flash Indexer" post
shows it (docs.nvidia.com/dynamo, digest, February 2026, section 2.1). The published form asks only
whether a worker has some block with these tokens; `verified` looks for the prompt's own sequence
hash. Both keep the chunk hash of every sequence hash, so that a removal need not look through all.

Run as a script with the path of an operation stream, it plays the stream and prints what a block
cost, in the columns of `examples/compare.rs`. It belongs to no distribution.
"""
# ruff: noqa: INP001 - a file of its own, loaded by path; the folder around it is a Rust crate

import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from xxhash import xxh3_64_intdigest

SEED = 1337
MAGIC = b"KVOPS\0\0\0"
HEADER = struct.Struct("<8s6I12Q")
RECORD = struct.Struct("<QIIQQ")
PAIR = struct.Struct("<QQ")
QUERY, STORE = 0, 1

Record = tuple[int, int, int | None, tuple[int, ...]]


def sequence_step(parent: int | None, chunk: int) -> int:
    """Return the sequence hash of the block `chunk` that follows `parent`, or begins a prompt."""
    if parent is None:
        return chunk
    return xxh3_64_intdigest(PAIR.pack(parent, chunk), SEED)


class NestedDict:
    """One dictionary per worker, with the calls of the trait `PrefixIndex`."""

    def __init__(self, *, verified: bool) -> None:
        self._verified = verified
        self._workers: dict[int, dict[int, set[int]]] = {}
        self._chunk_of: dict[int, dict[int, int]] = {}

    def store(self, worker: int, parent: int | None, chunks: Sequence[int]) -> None:
        """Add blocks that follow `parent`."""
        sequences = self._workers.setdefault(worker, {})
        chunk_of = self._chunk_of.setdefault(worker, {})
        for chunk in chunks:
            parent = sequence_step(parent, chunk)
            sequences.setdefault(chunk, set()).add(parent)
            chunk_of[parent] = chunk

    def remove(self, worker: int, hashes: Sequence[int]) -> None:
        """Remove the blocks of these sequence hashes, as far as the worker has them."""
        sequences = self._workers.get(worker, {})
        chunk_of = self._chunk_of.get(worker, {})
        for sequence_hash in hashes:
            chunk = chunk_of.pop(sequence_hash, None)
            if chunk is None:
                continue
            sequences[chunk].discard(sequence_hash)
            if not sequences[chunk]:
                del sequences[chunk]

    def clear(self, worker: int) -> None:
        """Remove all blocks of the worker."""
        self._workers.pop(worker, None)
        self._chunk_of.pop(worker, None)

    def find(self, chunks: Sequence[int]) -> dict[int, int]:
        """Map each worker that has any to the number of leading blocks of the prompt that it has."""
        hashes: list[int] = []
        found: dict[int, int] = {}
        for worker, sequences in self._workers.items():
            depth = 0
            for chunk in chunks:
                held = sequences.get(chunk)
                if held is None:
                    break
                if self._verified:
                    if depth == len(hashes):
                        hashes.append(sequence_step(hashes[-1] if hashes else None, chunk))
                    if hashes[depth] not in held:
                        break
                depth += 1
            if depth:
                found[worker] = depth
        return found


def records(data: bytes) -> Iterator[Record]:
    """Yield kind, worker, parent and hashes of each record of an operation stream of version 1."""
    magic, version, size, *_ = HEADER.unpack_from(data)
    if (magic, version, size) != (MAGIC, 1, HEADER.size):
        message = f"no operation stream of version 1: {magic!r}, version {version}, header {size}"
        raise ValueError(message)
    at = size
    while at < len(data):
        _, kind, worker, count, parent = RECORD.unpack_from(data, at)
        at += RECORD.size
        yield kind, worker, parent or None, struct.unpack_from(f"<{count}Q", data, at)
        at += 8 * count


def play(index: NestedDict, data: bytes) -> str:
    """Play a stream; return a line with ns per block stored and removed, and the p50 and p99 of look-ups in µs."""
    spent, blocks = [0, 0, 0], [0, 0, 0]
    finds: list[int] = []
    for kind, worker, parent, hashes in records(data):
        start = time.perf_counter_ns()
        if kind == QUERY:
            index.find(hashes)
        elif kind == STORE:
            index.store(worker, parent, hashes)
        else:
            index.remove(worker, hashes)
        elapsed = time.perf_counter_ns() - start
        spent[kind] += elapsed
        blocks[kind] += len(hashes)
        if kind == QUERY:
            finds.append(elapsed)
    finds.sort()
    _, store, remove = (ns / max(count, 1) for ns, count in zip(spent, blocks, strict=True))
    p50, p99 = (finds[int((len(finds) - 1) * q)] / 1e3 if finds else 0.0 for q in (0.5, 0.99))
    return f"{'nested dictionaries, Python':<31}{store:>9.1f}{remove:>9.1f}{p50:>9.2f}{p99:>9.2f}"


if __name__ == "__main__":
    stream = Path(sys.argv[1]).read_bytes()
    sys.stdout.write(play(NestedDict(verified=True), stream) + "\n")
