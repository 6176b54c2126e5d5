"""A cell under test, and its clock."""

from collections.abc import Iterable

import numpy as np

from kvatlas_native import Applied, Cell
from kvatlas_wire.v1 import indexer_pb2 as rpc
from tests.unit.cell.record_source import CONTRACT

LEASE_MS = 1_000
HOLD_BACK_MS = 200
RECOVER_MS = 2_000


class Bench:
    """Feeds records and time to a cell, only when a test says so."""

    def __init__(self, *, memory_bytes_max: int = 1 << 30) -> None:
        self.cell = Cell(
            cell="blue",
            model="model",
            block_size=16,
            hash_contract=CONTRACT,
            replica_id="replica",
            version="test",
            lease_ms=LEASE_MS,
            hold_back_batches_max=8,
            hold_back_ms=HOLD_BACK_MS,
            recover_ms=RECOVER_MS,
            memory_bytes_max=memory_bytes_max,
        )
        self.now_ms = 10_000_000

    def feed(
        self, *records: bytes, appended_ms: int | None = None, transport: str = "redis"
    ) -> Applied:
        appended_ms = self.now_ms if appended_ms is None else appended_ms
        return self.cell.apply(
            records,
            transport=transport,
            appended_unix_ms=[appended_ms] * len(records),
            now_unix_ms=self.now_ms,
        )

    def pass_ms(self, passed_ms: int, *, log_alive: bool = True) -> None:
        for _ in range(passed_ms // 100):
            self.now_ms += 100
            self.cell.tick(self.now_ms, log_alive=log_alive)

    def find(self, *hashes: int) -> list[tuple[int, int, int]]:
        found = self.cell.find_matches(np.array(hashes, dtype=np.uint64), chunks=False)
        columns = (found.worker_ids.tolist(), found.dp_ranks.tolist(), found.depths.tolist())
        return list(zip(*columns, strict=True))

    def status(self) -> rpc.GetStatusResponse:
        return rpc.GetStatusResponse.FromString(self.cell.status())

    def worker(self, worker_id: int = 1) -> rpc.WorkerStatus:
        (found,) = (w for w in self.status().workers if w.info.worker.worker_id == worker_id)
        return found

    def state(self, worker_id: int = 1) -> "rpc.WorkerState.ValueType":
        return self.worker(worker_id).info.state

    def count(self, name: str) -> int:
        return self.cell.counters()[name]

    def counts(self, names: Iterable[str]) -> dict[str, int]:
        return {name: self.count(name) for name in names}


def held(worker: rpc.WorkerStatus) -> dict[int, tuple[int, int]]:
    """Return blocks and digest by tier."""
    return {digest.tier: (digest.blocks, digest.digest) for digest in worker.digests}
