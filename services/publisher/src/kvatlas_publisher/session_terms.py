"""What a session is given by its process, what it counts, and how its records are headed."""

import os
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvatlas_engines import Reason
from kvatlas_engines.stream import StreamTiming
from kvatlas_events import Header, Worker
from kvatlas_events.delivery import DeliverySettings
from kvatlas_hashing import CONTRACT
from kvatlas_native import Memory
from kvatlas_publisher.claims import Claims
from kvatlas_publisher.settings import EngineSpec
from kvatlas_publisher.state_dir import Owner

_FLUSH_EARLY = 0.25
"""A share of `flush_s` that need not be waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What all sessions of a process share."""

    instance_id: int
    advertised_rpc: str
    heartbeat_s: float = 1.0
    engine_gone_s: float = 10.0
    flush_s: float = 0.003
    mirror_blocks_max: int = 4_000_000
    memory: Memory | None = None
    """Where all mirrors lie; None: where the process's other things do."""
    replay_bytes_max: int = 8 << 20
    checkpoint_s: float = 30.0
    """0: only at stop."""
    seen_epochs: Mapping[Owner, int] = field(default_factory=dict[Owner, int])
    """The highest that the indexers have seen; ours are above."""
    claims: Claims = field(default_factory=Claims)
    """Of the logs that the writers write to."""
    timing: StreamTiming = field(default_factory=StreamTiming)
    delivery: DeliverySettings = field(default_factory=lambda: DeliverySettings(flush_s=0.0))
    """What a session seals has waited `flush_s` for company, and need not wait again."""

    def flush_in_s(self, since_s: float) -> float:
        """How long to wait with what was said now, `since_s` after the last flush; 0: not at all.

        The follower reads a burst about every `flush_s`; a timer for the little that is left would
        wake the loop once more for each read.
        """
        left_s = self.flush_s - since_s
        return left_s if left_s > _FLUSH_EARLY * self.flush_s else 0.0


@dataclass(slots=True)
class SessionCounters:
    """What happened over all lives; read by metrics."""

    lives: int = 0
    malformed_messages: int = 0
    holes: int = 0
    events: int = 0
    records: int = 0
    rejected: int = 0
    lives_ended: Counter[str] = field(default_factory=Counter[str])
    unindexable: Counter[Reason] = field(default_factory=Counter[Reason])
    suspects_removed: int = 0
    state_corrupt: int = 0
    state_failures: int = 0
    checkpoints: int = 0
    checkpoints_resumed: int = 0
    checkpoints_dropped: int = 0
    event_lag_s: float = 0.0


def header_of(spec: EngineSpec, worker: Worker, epoch: int, instance_id: int) -> Header:
    """Return the header of all records of one life."""
    return Header(
        worker=worker,
        epoch=epoch,
        instance_id=instance_id,
        cell=spec.cell,
        model=spec.model,
        block_size=spec.block_size,
        hash_contract=CONTRACT,
        publisher=f"{socket.gethostname()}-{os.getpid()}",
    )
