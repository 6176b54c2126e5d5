"""The publisher of one worker: builds its parts, runs their tasks, and closes them in order."""

import asyncio
from collections.abc import Sequence

from kvatlas_chassis import FatalError, TaskSet
from kvatlas_engines.follower import Follower
from kvatlas_engines.sequencer import MessageSequencer
from kvatlas_events import Header, LogWriter, ShutdownReason, WorkerKey
from kvatlas_publisher.context import WorkerContext
from kvatlas_publisher.engine.http import EngineHttp
from kvatlas_publisher.engine.monitor import EngineMonitor
from kvatlas_publisher.epoch.epoch import Epoch
from kvatlas_publisher.heartbeats import Heartbeats
from kvatlas_publisher.ownership.claims import Claims
from kvatlas_publisher.pipeline import EventPipeline
from kvatlas_publisher.state.checkpoints import Checkpoints


class WorkerPublisher:
    """Follows one engine rank and publishes what its cache holds, until `close`.

    Args:
        context: the worker.
        writers: destinations of its records; `close` closes them.
        http: the engine's HTTP; None: it is not configured.
        claims: the claims in the logs that `writers` write to; they stay the caller's.

    Raises:
        SettingsError: the state directory cannot be read.
    """

    def __init__(
        self,
        context: WorkerContext,
        writers: Sequence[LogWriter],
        http: EngineHttp | None = None,
        claims: Claims | None = None,
    ) -> None:
        self.context = context
        self.monitor = EngineMonitor(context, http)
        self.checkpoints = Checkpoints(context)
        self.pipeline = EventPipeline(context, writers, self.monitor, self.checkpoints)
        self.follower = Follower(
            context.spec.events,
            context.spec.replay,
            handle=self.pipeline.handle,
            on_malformed=self.pipeline.on_malformed,
            settings=context.process.follower,
            resume_point=self.checkpoints.resume_point,
        )
        self.heartbeats = Heartbeats(
            context, self.follower, self.monitor, self.checkpoints, self.pipeline
        )
        self._claims = claims or Claims()

    @property
    def worker(self) -> WorkerKey:
        """The worker; its rank may change once, with the engine's first message."""
        return self.context.worker

    @property
    def epoch(self) -> Epoch | None:
        """The current epoch; None: the engine was not heard of yet, or is gone."""
        return self.pipeline.epochs.current

    def sealed_epoch(self) -> Epoch | None:
        """Return the current epoch with nothing pending; None: there is none."""
        return self.pipeline.sealed_epoch()

    async def run(self) -> None:
        """Publish until cancelled.

        Raises:
            FatalError: the engine or a receiver is not what was configured, or another publisher
                owns this worker.
        """
        delivering = self.pipeline.deliveries.start()
        tasks = TaskSet()
        tasks.start(self.monitor.run(), name="engine http")
        tasks.start(self.heartbeats.run(), name="heartbeats")
        tasks.start(
            self.checkpoints.run(self._sealed_position, self.pipeline.paused), name="checkpoints"
        )
        self._claims.start(self.context.spec, self._header, tasks)
        tasks.start(self._follow(), name="follower")
        failures = [asyncio.create_task(each.failed()) for each in (tasks, delivering)]
        try:
            done, _ = await asyncio.wait(failures, return_when=asyncio.FIRST_COMPLETED)
            for failure in done:
                failure.result()
        finally:
            for failure in failures:
                failure.cancel()
            await asyncio.gather(*failures, return_exceptions=True)
            await tasks.close()

    async def close(self, drain_s: float) -> bool:
        """Write a last checkpoint, publish the end, deliver it for at most `drain_s` seconds.

        True: every destination has acknowledged everything.
        """
        await self.checkpoints.settled()
        self.checkpoints.save(*self._sealed_position())
        self.pipeline.end_epoch(ShutdownReason.PUBLISHER_LEAVING)
        return await self.pipeline.deliveries.close(drain_s)

    async def _follow(self) -> None:
        try:
            await self.follower.run()
        except OSError as error:
            raise FatalError(
                f"kvatlas publisher: --events {self.context.spec.events}: {error}"
            ) from None

    def _sealed_position(self) -> tuple[Epoch | None, MessageSequencer]:
        """Return the epoch with nothing pending, and the sequencer whose last message it applied."""
        return self.sealed_epoch(), self.follower.sequencer

    def _header(self) -> Header | None:
        """Return the header of the newest epoch."""
        epoch = self.pipeline.epochs.latest
        return None if epoch is None else epoch.header
