"""The follower of one engine rank, and the task that runs it; another one when the engine is gone."""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence

from kvatlas_chassis import FatalError, TaskSet
from kvatlas_engines.anchor import Anchor
from kvatlas_engines.follower import Follower
from kvatlas_engines.stream import Effect, StreamTiming
from kvatlas_publisher.settings import EngineSpec


class Following:
    """Follows from `start` until the tasks are closed.

    Args:
        spec: what to follow.
        timing: of the stream.
        handle: takes the stream's effects.
        tasks: the follower runs as one of them.
        anchor: take this life of the engine up again.
    """

    def __init__(
        self,
        spec: EngineSpec,
        timing: StreamTiming,
        handle: Callable[[Sequence[Effect]], None],
        tasks: TaskSet,
        anchor: Anchor | None,
    ) -> None:
        self._spec = spec
        self._timing = timing
        self._handle = handle
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._held: list[Sequence[Effect]] | None = None
        self.follower = self._make(anchor)

    def start(self) -> None:
        """Begin."""
        self._task = self._tasks.start(self._run(), name="follower")

    async def anew(self) -> None:
        """Forget what was followed: what comes now begins anew, from all that is still kept."""
        if self._task is not None:
            self._task.cancel()
            # Not awaited itself: its cancellation could not be told from that of whoever waits here.
            await asyncio.wait([self._task])
            self._task = None
        self.follower = self._make(None)
        self.start()

    @property
    def is_holding(self) -> bool:
        """Inside of `holding`."""
        return self._held is not None

    @contextlib.contextmanager
    def holding(self) -> Generator[None, None, None]:
        """Keep what the engine says meanwhile, and hand it over at the end, in order."""
        self._held = list[Sequence[Effect]]()
        try:
            yield
        finally:
            held, self._held = self._held, None
            for effects in held:
                self._handle(effects)

    def _pass_on(self, effects: Sequence[Effect]) -> None:
        if self._held is None:
            self._handle(effects)
        else:
            self._held.append(effects)

    def _make(self, anchor: Anchor | None) -> Follower:
        return Follower(
            self._spec.events,
            self._spec.replay,
            handle=self._pass_on,
            timing=self._timing,
            anchor=anchor,
        )

    async def _run(self) -> None:
        try:
            await self.follower.run()
        except OSError as error:
            raise FatalError(f"kvatlas publisher: --events {self._spec.events}: {error}") from None
