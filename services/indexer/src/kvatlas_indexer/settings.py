"""What an indexer can be told, and what it checks before it starts."""

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from kvatlas_chassis import HostPort, ServiceSettings
from kvatlas_events import LOG_SERVER_URLS, open_reader


class IndexerSettings(ServiceSettings):
    """Settings of `kvatlas indexer`."""

    listen: HostPort = Field(
        default=HostPort("127.0.0.1", 7400), description="where the gRPC API listens"
    )
    log: tuple[str, ...] = Field(
        default=("grpc:",),
        min_length=1,
        description="event log to read, repeatable: several at once feed one index; grpc: "
        f"(publishers push to this indexer), {LOG_SERVER_URLS}",
    )
    model: str = Field(min_length=1, description="the one model of the cell")
    block_size: int = Field(gt=0, lt=2**32, description="tokens per block, equal in the whole cell")
    cell: str = Field(default="default", min_length=1, description="the cell's name")
    replica_id: str = Field(
        default="", description="this replica's name in its status; default: host and process"
    )
    snapshot_dir: Path | None = Field(
        default=None,
        description="where this replica alone keeps the state that it starts from again",
    )
    snapshot_interval_s: float = Field(
        default=300.0, gt=0, description="between two states kept there, seconds; one more at stop"
    )
    peer: tuple[HostPort, ...] = Field(
        default=(),
        description="replica whose state to start from if there is no file; tried in order",
    )
    peer_patience_s: float = Field(
        default=10.0, gt=0, description="for a peer's next part to come at the start, seconds"
    )
    threads: int = Field(default=1, gt=0, le=256, description="threads that answer gRPC calls")
    lease_ms: int = Field(
        default=10_000, gt=0, description="how long a silent worker is still matched"
    )
    probe_ms: int = Field(
        default=1_000,
        ge=0,
        description="between two probes of a log's writing side, which leases wait for, at most an "
        "eighth of a lease; 0: none, for an account that may only read",
    )
    hold_back_batches_max: int = Field(
        default=256, gt=0, description="batches a worker may have waiting behind a missing one"
    )
    hold_back_ms: int = Field(
        default=2_000, gt=0, description="how long a gap may stay open before recovery"
    )
    recover_ms: int = Field(
        default=30_000, gt=0, description="wait for a worker's snapshot before its set is emptied"
    )
    recoveries_at_once: int = Field(
        default=32, gt=0, le=1_024, description="workers whose publishers are asked at a time"
    )
    recovery_attempt_ms: int = Field(
        default=15_000, gt=0, description="for a publisher to answer one recovering worker"
    )
    memory_bytes_max: int = Field(
        default=8 << 30,
        ge=1 << 20,  # an index of one block has shards and worker slots too
        description="of the index, at least 1 MiB; past it the largest worker is emptied",
    )
    memory_bytes_kept: int = Field(
        default=0,
        ge=0,
        description="taken from the system at the start and kept, so that no event waits for it",
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
    def _no_more_is_kept_than_may_be_used(self) -> Self:
        if self.memory_bytes_kept > self.memory_bytes_max:
            raise ValueError(
                f"memory_bytes_kept is {self.memory_bytes_kept}, "
                f"more than memory_bytes_max, which is {self.memory_bytes_max}"
            )
        return self
