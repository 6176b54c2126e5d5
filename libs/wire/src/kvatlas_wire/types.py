"""Types that all parts share. Each mirrors a message or an enum of `events.proto`."""

import enum
from dataclasses import dataclass
from typing import NamedTuple


class WorkerKey(NamedTuple):
    """One engine rank with a cache of its own; unique in a cell."""

    worker_id: int
    dp_rank: int = 0

    def __str__(self) -> str:
        return f"{self.worker_id}/{self.dp_rank}"


class Tier(enum.StrEnum):
    """Storage that holds a block, from near to far. Parts of a snapshot come in this order."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class TierDigest:
    """Number and XOR of a worker's live sequence hashes on one tier."""

    tier: Tier
    blocks: int
    digest: int


@dataclass(frozen=True, slots=True)
class Load:
    """An engine's load, from its own metrics."""

    requests_running: int
    requests_waiting: int
    kv_usage: float
    """Share of the engine's cache in use, 0 to 1."""
