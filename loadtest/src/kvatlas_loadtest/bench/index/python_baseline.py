"""Measures nested dictionaries in Python, the simplest index.

The design is a file beside the other baselines in the checkout. It is played without pacing, on one
thread, for a limited time: that gives an upper bound of what it could keep up with.
"""

import importlib.util
import mmap
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from kvatlas_chassis import FatalError
from kvatlas_loadtest.bench.index.opstream import RECORD
from kvatlas_loadtest.bench.index.results import Result
from kvatlas_loadtest.bench.index.streams import Stream

LABEL = "nested dictionaries, Python"
_FILE = Path("libs") / "index" / "baselines" / "nested_dict.py"
_HEADER_BYTES = 128
_HASH_BYTES = 8
_QUERY, _STORE, _REMOVE = range(3)


class Index(Protocol):
    """The baseline's interface."""

    def store(self, worker: int, parent: int | None, chunks: tuple[int, ...]) -> None:
        """Add blocks to a worker."""
        ...

    def remove(self, worker: int, hashes: tuple[int, ...]) -> None:
        """Remove blocks from a worker."""
        ...

    def find(self, chunks: tuple[int, ...]) -> dict[int, int]:
        """The number of leading blocks that each worker holds."""
        ...


@dataclass(slots=True)
class Spent:
    """Time spent in the index, and blocks, by kind of record."""

    ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    blocks: list[int] = field(default_factory=lambda: [0, 0, 0])
    finds_ns: list[int] = field(default_factory=list[int])


def make_index() -> Index | None:
    """The baseline, empty; None outside of a checkout.

    Raises:
        FatalError: its file cannot be loaded.
    """
    for folder in Path(__file__).parents:
        file = folder / _FILE
        if file.is_file():
            spec = importlib.util.spec_from_file_location("nested_dict", file)
            if spec is None or spec.loader is None:
                raise FatalError(f"kvatlas bench: {file} is no Python module")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            make = cast("Callable[..., Index]", module.NestedDict)
            return make(verified=True)
    return None


def measure(index: Index, stream: Stream, *, seconds: float) -> Result:
    """Play a stream from its start for about `seconds`."""
    spent = play(index, stream.path, ns_max=round(seconds * 1e9), clock=time.perf_counter_ns)
    block_ops = sum(spent.blocks)
    share = block_ops / max(stream.header.block_ops, 1)
    finds_us = np.asarray(spent.finds_ns or [0], dtype=np.float64) / 1e3
    p50, p99, p999 = np.percentile(finds_us, (50, 99, 99.9))
    return Result(
        LABEL,
        ours=False,
        exact=True,
        share=share,
        block_ops_per_s=block_ops / max(sum(spent.ns), 1) * 1e9,
        lookup_us={"p50": float(p50), "p99": float(p99), "p999": float(p999)},
        write_ns=_per_block(spent),
        note=f"unpaced, one thread, first {share:.2%} of the stream",
    )


def play(index: Index, path: Path, *, ns_max: int, clock: Callable[[], int]) -> Spent:
    """Apply a stream's records in order, until the time in the index exceeds a bound."""
    spent = Spent()
    for kind, worker, parent, hashes in _records(path):
        begin = clock()
        if kind == _QUERY:
            index.find(hashes)
        elif kind == _STORE:
            index.store(worker, parent, hashes)
        else:
            index.remove(worker, hashes)
        took = clock() - begin
        spent.ns[kind] += took
        spent.blocks[kind] += len(hashes)
        if kind == _QUERY:
            spent.finds_ns.append(took)
        if sum(spent.ns) > ns_max:
            break
    return spent


def _records(path: Path) -> Iterator[tuple[int, int, int | None, tuple[int, ...]]]:
    """Kind, worker, parent and hashes of each record. The file is mapped: little of it is read."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = _HEADER_BYTES
        while at < len(data):
            _, kind, worker, count, parent = RECORD.unpack_from(data, at)
            at += RECORD.size
            yield kind, worker, parent or None, struct.unpack_from(f"<{count}Q", data, at)
            at += _HASH_BYTES * count


def _per_block(spent: Spent) -> float | None:
    ns = spent.ns[_STORE] + spent.ns[_REMOVE]
    blocks = spent.blocks[_STORE] + spent.blocks[_REMOVE]
    return ns / blocks if blocks else None
