"""Follows one engine rank: moves bytes from its sockets through the `MessageSequencer` to a handler.

    subscription ──live messages──▶ sequencer ──effects──▶ handler
    replay       ◀──RequestReplay──           ──replies──▶ sequencer

Memory is bounded by the sockets' queues and the sequencer's buffer. The engine never waits for us: its
own socket drops messages that we do not read in time, and the sequencer finds the gap.

`Opened` comes before a connection's messages, so the sequencer learns of a reconnect before it sees
messages of a perhaps restarted engine.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvatlas_engines.effects import Effect, RequestReplay, ResumePoint
from kvatlas_engines.endpoint import Endpoint
from kvatlas_engines.frames import MalformedMessage, Message, ReplayEnd, parse_frames
from kvatlas_engines.replay import ReplayClient
from kvatlas_engines.sequencer import FollowerSettings, MessageSequencer
from kvatlas_engines.subscription import Closed, Messages, Opened, Subscription

_TIMER_RESOLUTION_S = 0.001
"""The resolution of the event loop's timers."""


@dataclass(slots=True)
class FollowerCounters:
    """Counts of the sockets; the sequencer has the others."""

    connects: int = 0
    last_message_s: float = field(default_factory=time.monotonic)
    """The monotonic time of the last message, or of the start."""


class Follower:
    """Follows one engine rank until cancelled.

    `handle` gets the sequencer's effects in order, without `RequestReplay`. `on_malformed` gets the
    number of messages whose frames could not be read, and the first one's error. Both run on the
    event loop and must not block. An exception of theirs ends `run`.

    Args:
        events: the engine's PUB socket.
        replay: the engine's replay socket; None: it has none.
        handle: takes effects.
        on_malformed: takes malformed messages.
        settings: see `FollowerSettings`.
        resume_point: continue behind this message; only with `replay`.
    """

    def __init__(
        self,
        events: Endpoint,
        replay: Endpoint | None,
        *,
        handle: Callable[[Sequence[Effect]], None],
        on_malformed: Callable[[int, str], None],
        settings: FollowerSettings | None = None,
        resume_point: ResumePoint | None = None,
    ) -> None:
        self._events = events
        self._replay = replay
        self._handle = handle
        self._on_malformed = on_malformed
        self._settings = settings or FollowerSettings()
        self._sockets: _Sockets | None = None
        self._reset(resume_point)

    def _reset(self, resume_point: ResumePoint | None) -> None:
        self.counters = FollowerCounters()
        self.sequencer = MessageSequencer(
            has_replay=self._replay is not None, settings=self._settings, resume_point=resume_point
        )
        self.connected = False

    async def run(self) -> None:
        """Follow until cancelled; sockets are closed then.

        Raises:
            OSError: the address cannot be bound or is not understood.
        """
        while True:
            self._sockets = _Sockets(
                self,
                self._events,
                self._replay,
                handle=self._handle,
                on_malformed=self._on_malformed,
                read_interval_s=self._settings.read_interval_s,
            )
            try:
                await self._sockets.run()
            finally:
                await self._sockets.close()

    def restart(self) -> None:
        """Forget the engine's stream, and follow it anew from all that the engine still keeps.

        Nothing of the old stream is handled after this returns.
        """
        self._reset(None)
        if self._sockets is not None:
            self._sockets.stop()


class _Sockets:
    """The sockets from a start to the next."""

    def __init__(
        self,
        follower: Follower,
        events: Endpoint,
        replay: Endpoint | None,
        *,
        handle: Callable[[Sequence[Effect]], None],
        on_malformed: Callable[[int, str], None],
        read_interval_s: float,
    ) -> None:
        self._follower = follower
        self._sequencer = follower.sequencer
        self._handle = handle
        self._on_malformed = on_malformed
        self._read_interval_s = read_interval_s
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._subscription = Subscription(events, self._wake.set)
        self._replay = None if replay is None else ReplayClient(replay, self._wake.set)
        self._generation = 0
        self._read_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._stopped = False

    async def run(self) -> None:
        """Follow until `stop`."""
        await self._subscription.start()
        while not self._stopped:
            self._set_timer()
            await self._wake.wait()
            await self._wait_for_burst()
            self._wake.clear()
            if self._stopped:
                break
            more = self._read()
            self._act(self._sequencer.tick(time.monotonic()))
            if more:
                self._wake.set()  # a queue is not empty: let others run, then continue
                await asyncio.sleep(0)

    def stop(self) -> None:
        """End `run` before anything else is read."""
        self._stopped = True
        self._wake.set()

    async def close(self) -> None:
        """Close all sockets."""
        if self._timer is not None:
            self._timer.cancel()
        if self._replay is not None:
            self._replay.close()
        await self._subscription.close()

    def _set_timer(self) -> None:
        """Wake up when the sequencer is due, even without input."""
        due = self._sequencer.due
        if due is None or (self._timer is not None and self._timer_due <= due):
            return  # the present timer fires first, and then this is called again
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(0.0, due - time.monotonic()) + _TIMER_RESOLUTION_S
        self._timer, self._timer_due = self._loop.call_later(wait_s, self._on_timer), due

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()

    async def _wait_for_burst(self) -> None:
        """Wait until the read interval is over, so that a burst is read many messages at a time.

        A message that comes alone is read at once. Nothing is received meanwhile, since each arrival
        would wake the loop.
        """
        early_s = self._read_s + self._read_interval_s - self._loop.time()
        if early_s > 0 and not self._subscription.is_behind:
            self._subscription.pause()
            await asyncio.sleep(early_s)
            self._subscription.resume()

    def _read(self) -> bool:
        """Take all input; True: there may be more."""
        now = time.monotonic()
        for news in self._subscription.take():
            match news:
                case Opened():
                    self._follower.connected = True
                    self._follower.counters.connects += 1
                    self._act(self._sequencer.on_connected(now))
                case Closed():
                    self._follower.connected = self._subscription.is_open
                    if not self._subscription.is_open:
                        self._sequencer.on_disconnected()
                case Messages():
                    self._on_messages(news, now)
        return self._read_replies(now)

    def _on_messages(self, messages: Messages, now: float) -> None:
        if messages.malformed:
            self._on_malformed(messages.malformed, messages.first_malformed or "")
        if messages.seqs:
            self._read_s = self._loop.time()
            self._follower.counters.last_message_s = now
            self._act(self._sequencer.on_live_many(messages.seqs, messages.payloads, now))

    def _read_replies(self, now: float) -> bool:
        if self._replay is None:
            return False
        generation = self._generation
        replies, more = self._replay.take()
        for frames in replies:
            match self._parse(frames):
                case Message(seq, payload):
                    self._act(self._sequencer.on_replayed(generation, seq, payload, now))
                case ReplayEnd():
                    self._act(self._sequencer.on_replay_end(generation, now))
                case None:
                    continue
        return more

    def _parse(self, frames: list[bytes]) -> Message | ReplayEnd | None:
        try:
            return parse_frames(frames)
        except MalformedMessage as error:
            self._on_malformed(1, str(error))
            return None

    def _act(self, effects: list[Effect]) -> None:
        """Carry out the effects, in order."""
        handled: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, RequestReplay):
                handled.append(effect)
            elif self._replay is not None:
                self._generation = effect.generation
                self._replay.request(effect.start)
        if handled:
            self._handle(handled)
