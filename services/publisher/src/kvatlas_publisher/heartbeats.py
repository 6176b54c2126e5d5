"""Sends heartbeats, and decides from the engine's signs of life whether it is there or gone."""

import asyncio
import logging
import time

from kvatlas_engines.follower import Follower
from kvatlas_events import ShutdownReason
from kvatlas_publisher.context import WorkerContext
from kvatlas_publisher.engine.monitor import EngineMonitor
from kvatlas_publisher.pipeline import EventPipeline
from kvatlas_publisher.state.checkpoints import Checkpoints

log = logging.getLogger(__name__)


class Heartbeats:
    """Sends heartbeats; begins an epoch for an idle engine, and ends the epoch of a gone one.

    An engine is there while its events' connection is open or its HTTP answers.

    Args:
        context: the worker.
        follower: the connection for the engine's events.
        monitor: the engine's HTTP.
        checkpoints: an epoch waits as long as a checkpoint may be resumed.
        pipeline: begins and ends epochs, and sends the heartbeats.
    """

    def __init__(
        self,
        context: WorkerContext,
        follower: Follower,
        monitor: EngineMonitor,
        checkpoints: Checkpoints,
        pipeline: EventPipeline,
    ) -> None:
        self._context = context
        self._follower = follower
        self._monitor = monitor
        self._checkpoints = checkpoints
        self._pipeline = pipeline
        self._last_seen_s = time.monotonic()

    async def run(self) -> None:
        """Beat every `heartbeat_s` until cancelled."""
        while True:
            self._check_engine(time.monotonic())
            self._pipeline.send_heartbeat()
            await asyncio.sleep(self._context.settings.heartbeat_s)

    def _check_engine(self, now_s: float) -> None:
        pipeline, context = self._pipeline, self._context
        has_epoch = pipeline.epochs.current is not None
        if self._follower.connected or self._monitor.answers:
            self._last_seen_s = now_s
            if not has_epoch and not self._awaits_checkpoint(now_s):
                pipeline.begin_epoch()
        elif has_epoch and now_s - self._last_seen_s >= context.settings.engine_gone_s:
            log.warning("worker %s: the engine is gone", context.worker)
            context.counters.epochs_ended["engine_gone"] += 1
            pipeline.end_epoch(ShutdownReason.ENGINE_GONE)
            self._follower.restart()

    def _awaits_checkpoint(self, now_s: float) -> bool:
        """Return whether the engine may still prove that the checkpoint's mirror is its own."""
        checkpoints = self._checkpoints
        if checkpoints.resume_point is None:
            return False
        if not checkpoints.is_overdue(now_s, self._context.settings.engine_gone_s):
            return True
        checkpoints.drop("the engine does not replay its last message")
        self._follower.restart()
        return False
