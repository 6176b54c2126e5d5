"""Time from the start of a replica's process to its ready line, with a full state file.

A cell that was filled by records writes the file. Half of a worker's blocks are shared by a group of
four workers, as with equal prompts. No log is read: the time to read one up to its head depends on
the log.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop

from kvatlas_events import Batch, Hashes, Heartbeat, Store, Tier, encode_batch
from kvatlas_hashing import CONTRACT
from kvatlas_indexer.state.files import StateFiles
from kvatlas_loadtest.bench.cell import BLOCK_SIZE, CELL, MODEL, indexer_command, record_header
from kvatlas_loadtest.bench.processes import cpu_s
from kvatlas_loadtest.bench.rows import Medians, Row
from kvatlas_loadtest.indexer_rpc import replica
from kvatlas_loadtest.supervisor import Process, Supervisor
from kvatlas_native import Cell

START_S_TARGET = 5.0
MEMBERSHIPS = 10_000_000
_WORKERS = 100
_GROUP = 4
_ROUNDS = 3
_RECORD_BLOCKS = 1 << 15


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Replica start: from a state file of 10 million memberships; writing it; dumping it."""
    return uvloop.run(_measure(_Fleet(_WORKERS, MEMBERSHIPS // (1_000 if quick else 1)), quick))


@dataclass(frozen=True, slots=True)
class _Fleet:
    workers: int
    memberships: int

    @property
    def blocks(self) -> int:
        """Number of blocks of one worker; even."""
        return self.memberships // self.workers // 2 * 2

    def sets(self) -> Iterator[tuple[int, Hashes]]:
        """Every worker with its sequence hashes."""
        half = self.blocks // 2
        random = np.random.default_rng(1)
        shared = np.empty(0, np.uint64)
        for worker_id in range(self.workers):
            if worker_id % _GROUP == 0:
                shared = random.integers(0, 2**64, half, np.uint64)
            own = random.integers(0, 2**64, half, np.uint64)
            yield worker_id, np.concatenate([shared, own])

    def records(self) -> Iterator[bytes]:
        """The records that the fleet's publishers would append."""
        for worker_id, hashes in self.sets():
            header = record_header(worker_id, epoch=1_000)
            parts = [
                hashes[at : at + _RECORD_BLOCKS] for at in range(0, len(hashes), _RECORD_BLOCKS)
            ]
            for number, part in enumerate(parts, start=1):
                event = Store(parent=None, sequence_hashes=part, tier=Tier.DEVICE)
                yield encode_batch(Batch(header=header, first_event_id=number, events=(event,)))
            beat = Heartbeat(
                last_event_id=len(parts),
                digests=(),
                load=None,
                capacity_blocks=self.blocks,
                engine_url=f"http://engine-{worker_id}",
                publisher_rpc="",
                role="",
            )
            yield encode_batch(Batch(header=header, heartbeat=beat))


async def _measure(fleet: _Fleet, quick: bool) -> list[Row]:  # noqa: FBT001 - passed on
    figures = Medians()
    with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as folder:
        kept = Path(folder) / "kept"
        file_bytes = _fill(kept, fleet, figures)
        for _ in range(1 if quick else _ROUNDS):
            figures.add("empty", await _start(Path(folder), (), 0, figures))
            words = ("--snapshot-dir", str(kept))
            figures.add("start", await _start(Path(folder), words, fleet.memberships, figures))
    settings = {"memberships": fleet.memberships, "workers": fleet.workers}
    name = "replica-start"
    return [
        Row(name, "start to ready", figures["start"], "s", START_S_TARGET, settings=settings),
        Row(name, "CPU of that start", figures["cpu"], "s", settings=settings),
        Row(name, "start to ready, no file", figures["empty"], "s", settings={"memberships": 0}),
        Row(name, "write the file", figures["write"], "s", settings=settings),
        Row(name, "file", file_bytes / fleet.memberships, "B/membership", settings=settings),
        Row(name, "Dump, sent and received", figures["dump"], "s", settings=settings),
    ]


def _fill(kept: Path, fleet: _Fleet, figures: Medians) -> int:
    """Fill a cell with the fleet and write its state file; return the file's length."""
    cell = Cell(
        cell=CELL,
        model=MODEL,
        block_size=BLOCK_SIZE,
        hash_contract=CONTRACT,
        replica_id="bench",
        version="bench",
        lease_ms=10_000,
        hold_back_batches_max=16,
        hold_back_ms=1_000,
        memory_bytes_max=8 << 30,
    )
    now_ms = time.time_ns() // 1_000_000
    for record in fleet.records():
        cell.apply([record], transport="grpc", appended_unix_ms=[now_ms], now_unix_ms=now_ms)
    files = StateFiles(kept)
    began = time.perf_counter()
    if not files.write(cell, now_ms):
        raise RuntimeError(f"the state could not be written to {kept}")
    figures.add("write", time.perf_counter() - began)
    return files.newest_bytes


async def _start(folder: Path, words: tuple[str, ...], memberships: int, figures: Medians) -> float:
    """Seconds from the start of a replica's process to its ready line."""
    async with Supervisor(folder, ready_timeout_s=120) as supervisor:
        began = time.perf_counter()
        (process,) = await supervisor.start([indexer_command("grpc:", *words)])
        took_s = time.perf_counter() - began
        if memberships:
            figures.add("cpu", cpu_s(process))
        await _check(process, memberships, figures)
    return took_s


async def _check(process: Process, memberships: int, figures: Medians) -> None:
    async with replica(process.address()) as connection:
        held = (await connection.status()).memberships
        if held != memberships:
            raise RuntimeError(f"the replica holds {held} memberships, not {memberships}")
        if memberships:
            began = time.perf_counter()
            await connection.dump_bytes()
            figures.add("dump", time.perf_counter() - began)
