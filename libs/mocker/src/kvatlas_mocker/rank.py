"""One running data-parallel rank: a scheduler, the duration of its steps, its event stream.

Steps can be shorter than a timer's resolution. So each step is due one step's time after the one
before, and the loop sleeps only when it is a millisecond ahead. The pace is right on average at
any speed-up, without a timer per step.
"""

import asyncio
import time
from dataclasses import dataclass, field

from kvatlas_mocker.event_stream import EventStream
from kvatlas_mocker.hashing import BlockHasher
from kvatlas_mocker.scheduler import Request, Sampled, Scheduler
from kvatlas_mocker.timing import StepCost

_SLEEP_S_MIN = 0.001
_LATE_S_MAX = 0.05
"""Delay that a loop can catch up; beyond it, a busy machine slows the engine down."""


class EngineRestartedError(Exception):
    """The engine restarted during a request."""


@dataclass(slots=True, eq=False)
class TokenStream:
    """The tokens of one request as they are generated.

    `tokens` ends with a token whose `last` is true, or with None: the engine restarted.
    """

    request: Request
    rank: int
    tokens: asyncio.Queue[Sampled | None] = field(default_factory=asyncio.Queue[Sampled | None])

    async def next(self) -> Sampled:
        """The next token.

        Raises:
            EngineRestartedError: there are no more.
        """
        sampled = await self.tokens.get()
        if sampled is None:
            raise EngineRestartedError
        return sampled


class Rank:
    """Runs the steps of one scheduler. All methods belong to the event loop's thread."""

    def __init__(
        self,
        index: int,
        *,
        scheduler: Scheduler,
        hasher: BlockHasher,
        cost: StepCost,
        event_stream: EventStream,
    ) -> None:
        self.index = index
        self.scheduler = scheduler
        self.hasher = hasher
        self.event_stream = event_stream
        self._cost = cost
        self._token_streams: dict[Request, TokenStream] = {}
        self._work = asyncio.Event()

    @property
    def load(self) -> int:
        """The load by which vLLM balances ranks: a waiting request counts as four running ones."""
        return 4 * len(self.scheduler.waiting) + len(self.scheduler.running)

    def submit(self, request: Request) -> TokenStream:
        """Queue a request.

        Raises:
            QueueFullError: the queue is full.
        """
        self.scheduler.add(request)
        stream = TokenStream(request, self.index)
        self._token_streams[request] = stream
        self._work.set()
        return stream

    def abort(self, stream: TokenStream) -> None:
        """End a request whose client is gone; does nothing if the request has ended."""
        if self._token_streams.pop(stream.request, None) is not None:
            self.scheduler.abort(stream.request)
            self._work.set()

    def publish(self) -> None:
        """Send the cache's queued events in one message."""
        events = self.scheduler.cache.take_events()
        if events:
            self.event_stream.publish(time.time(), events)

    async def run(self) -> None:
        """Compute steps until cancelled."""
        due_s = 0.0
        while True:
            scheduler = self.scheduler
            step = scheduler.begin_step()
            if step is None:
                self._work.clear()
                await self._work.wait()
                due_s = 0.0
                continue
            now_s = time.monotonic()
            due_s = max(due_s, now_s - _LATE_S_MAX) if due_s else now_s
            due_s += self._cost.step_s(step)
            ahead_s = due_s - now_s
            await asyncio.sleep(ahead_s if ahead_s >= _SLEEP_S_MIN else 0)
            if scheduler is not self.scheduler:
                continue  # the engine restarted: drop this step
            sampled = scheduler.end_step(step)
            self.publish()
            self._deliver(sampled)

    async def restart(self, scheduler: Scheduler) -> None:
        """Lose requests, cache and event history, as a restarted process does."""
        self.scheduler = scheduler
        streams, self._token_streams = list(self._token_streams.values()), {}
        for stream in streams:
            stream.tokens.put_nowait(None)
        self._work.set()
        await self.event_stream.restart()

    def _deliver(self, sampled: list[Sampled]) -> None:
        for one in sampled:
            stream = self._token_streams.get(one.request)
            if stream is not None:
                stream.tokens.put_nowait(one)
                if one.last:
                    del self._token_streams[one.request]
