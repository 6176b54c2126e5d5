"""The settings of an indexer, checked before it starts."""

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from kvatlas_chassis import HostPort, ServiceSettings
from kvatlas_events import LOG_SERVER_URLS, open_reader


class IndexerSettings(ServiceSettings):
    """Settings of `kvatlas indexer`."""

    listen: HostPort = Field(
        default=HostPort("127.0.0.1", 7400), description="address of the gRPC API"
    )
    log: tuple[str, ...] = Field(
        default=("grpc:",),
        min_length=1,
        description="event log to read, repeatable: several feed one index; grpc: "
        f"(publishers push to this indexer), {LOG_SERVER_URLS}",
    )
    model: str = Field(min_length=1, description="name of the cell's only model")
    block_size: int = Field(gt=0, lt=2**32, description="tokens per block, equal in the whole cell")
    cell: str = Field(default="default", min_length=1, description="name of the cell")
    replica_id: str = Field(
        default="",
        description="name of this replica in its status (default: host name and process id)",
    )
    snapshot_dir: Path | None = Field(
        default=None,
        description="directory of this replica's state files, not shared (default: no files)",
    )
    snapshot_interval_s: float = Field(
        default=300.0,
        gt=0,
        description="seconds between two state files; one more is written at stop",
    )
    peer: tuple[HostPort, ...] = Field(
        default=(),
        description="replica to take the state from, if there is no state file; repeatable, tried in "
        "order (default: none)",
    )
    peer_patience_s: float = Field(
        default=10.0, gt=0, description="longest wait for the next part of a peer's state, seconds"
    )
    threads: int = Field(
        default=1, gt=0, le=256, description="number of threads that answer gRPC calls"
    )
    lease_ms: int = Field(
        default=10_000, gt=0, description="time that a silent worker is still matched, ms"
    )
    probe_ms: int = Field(
        default=1_000,
        ge=0,
        description="time between two probes, ms; at most an eighth of the lease is used. A probe "
        "shows that a log accepts writes. 0: no probes, for an account that may only read",
    )
    hold_back_batches_max: int = Field(
        default=256, gt=0, description="batches of a worker that may wait behind a missing one"
    )
    hold_back_ms: int = Field(
        default=2_000,
        gt=0,
        description="time that a gap may stay open before the worker is recovered, ms",
    )
    recover_ms: int = Field(
        default=30_000,
        gt=0,
        description="time that a worker may recover before its set is emptied, ms",
    )
    recoveries_at_once: int = Field(
        default=32, gt=0, le=1_024, description="number of workers that are recovered at once"
    )
    recovery_attempt_ms: int = Field(
        default=15_000, gt=0, description="time limit of one attempt to recover a worker, ms"
    )
    memory_bytes_max: int = Field(
        default=8 << 30,
        ge=1 << 20,  # even an index of one block has shards and worker slots
        description="bytes that the index may use, at least 1 MiB; beyond it workers are evicted",
    )
    memory_bytes_kept: int = Field(
        default=0,
        ge=0,
        description="bytes of memory to take at the start and keep, so that growth waits for none",
    )

    @field_validator("log")
    @classmethod
    def _logs_can_be_read(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            open_reader(url, cell="check")  # connects nothing; a ValueError says what is wrong
        if len(set(urls)) < len(urls):
            raise ValueError("a log is named twice")
        return urls

    @model_validator(mode="after")
    def _kept_memory_is_within_the_budget(self) -> Self:
        if self.memory_bytes_kept > self.memory_bytes_max:
            raise ValueError(
                f"memory_bytes_kept is {self.memory_bytes_kept}, "
                f"more than memory_bytes_max, which is {self.memory_bytes_max}"
            )
        return self
