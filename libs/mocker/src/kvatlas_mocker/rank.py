"""One data-parallel rank, live: a scheduler, the time its steps take, its event stream.

Steps shorter than a timer can tell apart are not slept one by one: each is due a step's time
after the one before, and the loop sleeps only when it is ahead of that by a millisecond. So the
pace is right on average at any speed-up, and a thousandfold one does not cost a thousand timers.
"""

import asyncio
import time
from dataclasses import dataclass, field

from kvatlas_mocker.hashing import BlockHasher
from kvatlas_mocker.scheduler import Request, Sampled, Scheduler
from kvatlas_mocker.stream import EventStream
from kvatlas_mocker.timing import StepCost

_SLEEP_S_MIN = 0.001
_LATE_S_MAX = 0.05
"""A loop that is later than this has lost the time: a busy machine slows the engine down."""


class EngineRestartedError(Exception):
    """The engine restarted under a request."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that a client waits for; `tokens` ends with one whose `last` is true, or None."""

    request: Request
    rank: int
    tokens: asyncio.Queue[Sampled | None] = field(default_factory=asyncio.Queue[Sampled | None])

    async def next(self) -> Sampled:
        """The next token.

        Raises:
            EngineRestartedError: there will be none.
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
        stream: EventStream,
    ) -> None:
        self.index = index
        self.scheduler = scheduler
        self.hasher = hasher
        self.stream = stream
        self._cost = cost
        self._tickets: dict[Request, Ticket] = {}
        self._work = asyncio.Event()

    @property
    def load(self) -> int:
        """What vLLM balances ranks by: a waiting request weighs four running ones."""
        return 4 * len(self.scheduler.waiting) + len(self.scheduler.running)

    def submit(self, request: Request) -> Ticket:
        """Queue a request.

        Raises:
            QueueFullError: as many wait as may.
        """
        self.scheduler.add(request)
        ticket = Ticket(request, self.index)
        self._tickets[request] = ticket
        self._work.set()
        return ticket

    def abort(self, ticket: Ticket) -> None:
        """The client is gone; harmless if the request has ended."""
        if self._tickets.pop(ticket.request, None) is not None:
            self.scheduler.abort(ticket.request)
            self._work.set()

    def publish(self) -> None:
        """Send the events that the cache has queued, in one message."""
        events = self.scheduler.cache.take_events()
        if events:
            self.stream.publish(time.time(), events)

    async def run(self) -> None:
        """Compute steps for ever."""
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
                continue  # restarted: this step never happened
            sampled = scheduler.end_step(step)
            self.publish()
            self._deliver(sampled)

    async def restart(self, scheduler: Scheduler) -> None:
        """Lose everything, as a process that came back: requests, cache, event history."""
        self.scheduler = scheduler
        tickets, self._tickets = list(self._tickets.values()), {}
        for ticket in tickets:
            ticket.tokens.put_nowait(None)
        self._work.set()
        await self.stream.restart()

    def _deliver(self, sampled: list[Sampled]) -> None:
        for one in sampled:
            ticket = self._tickets.get(one.request)
            if ticket is not None:
                ticket.tokens.put_nowait(one)
                if one.last:
                    del self._tickets[one.request]
