"""Settings, identity and counters that the parts of one worker's publisher share."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvatlas_chassis import LogRateLimiter
from kvatlas_engines.sequencer import FollowerSettings
from kvatlas_events import WorkerKey
from kvatlas_events.delivery import DeliverySettings
from kvatlas_native import MirrorMemory
from kvatlas_publisher.settings import EngineSpec, PublisherSettings
from kvatlas_publisher.state.state_dir import CellWorker, StateDir

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContext:
    """The facts and limits that all workers of this process share beside the settings."""

    instance_id: int
    """Random number of this process, in the header of every record."""
    advertised_rpc: str
    """Address (host:port) of this process's Publisher RPC, for heartbeats."""
    memory: MirrorMemory | None = None
    """Large pages for all mirrors; None: mirrors use the process's general allocator."""
    seen_epochs: Mapping[CellWorker, int] = field(default_factory=dict[CellWorker, int])
    """Highest epochs that indexers and logs know; new epochs are above them."""
    follower: FollowerSettings = field(default_factory=FollowerSettings)
    delivery: DeliverySettings = field(default_factory=lambda: DeliverySettings(flush_s=0.0))
    """Records have waited `flush_s` before they reach a delivery, so it sends them at once."""


@dataclass(slots=True)
class WorkerCounters:
    """Counts over all epochs of one worker, named as their metrics."""

    engine_messages_malformed: int = 0
    engine_holes: int = 0
    epochs: int = 0
    epochs_ended: Counter[str] = field(default_factory=Counter[str])
    """By reason."""
    events: int = 0
    records: int = 0
    rejections: int = 0
    state_corrupt: int = 0
    state_failures: int = 0
    checkpoints: int = 0
    checkpoints_resumed: int = 0
    checkpoints_dropped: int = 0
    event_lag_s: float = 0.0


class WorkerContext:
    """One worker: what to follow, under which settings, and what happened so far.

    Args:
        spec: the engine rank to follow.
        settings: the settings of the process.
        process: shared by all workers of the process.
        state: directory for epochs and checkpoints; None: nothing outlives the process.
        now_unix_us: the wall clock.
    """

    def __init__(
        self,
        spec: EngineSpec,
        settings: PublisherSettings,
        process: ProcessContext,
        state: StateDir | None = None,
        *,
        now_unix_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self.spec = spec
        self.settings = settings
        self.process = process
        self.state = state
        self.now_unix_us = now_unix_us
        self.counters = WorkerCounters()
        self.log_limiter = LogRateLimiter()
        self.worker = WorkerKey(spec.worker_id, spec.dp_rank or 0)
        """Its rank is 0 until the engine's first message names another one."""

    @property
    def cell_worker(self) -> CellWorker:
        """The worker, and the cell that it belongs to."""
        return CellWorker(self.spec.cell, self.worker)

    def on_state_failure(self, purpose: str, error: OSError) -> None:
        """Count a failure of the state directory, and log it at a limited rate."""
        self.counters.state_failures += 1
        if self.log_limiter.allows(f"state directory, {purpose}"):
            log.warning("worker %s: cannot use --state-dir for %s: %s", self.worker, purpose, error)
