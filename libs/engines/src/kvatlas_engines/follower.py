"""Moves an engine's bytes into the stream's state machine: the sockets of one engine rank.

The live end is a connection to the engine's PUB socket (`live`); each question about the past is
asked on a DEALER of its own. A question gets a fresh one, since replies to an abandoned one must
not mix with the new ones, and an engine ignores an identity that it has seen before.

Memory is bounded by the sockets' queues and the stream's buffer. Nothing here ever makes the engine
wait: what we do not read in time, the engine's own socket drops, and the stream finds it missing.

A connection's opening is told before its first message, so the stream hears of a reconnect before
it hears what the perhaps restarted engine says.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from kvatlas_engines.anchor import Anchor
from kvatlas_engines.endpoint import Endpoint
from kvatlas_engines.live import Closed, Live, Opened, Run
from kvatlas_engines.raw import MalformedMessage, Message, ReplayEnd, parse_frames
from kvatlas_engines.stream import Ask, Effect, Stream, StreamTiming

log = logging.getLogger(__name__)

_REPLAY_QUEUE_MESSAGES = 20_000  # engines keep 10,000 by default
_READ_AT_ONCE_MAX = 256
_MALFORMED_SAID_EVERY_S = 10.0
_CLOCK_S = 0.001
"""The event loop's timers are as exact as that."""


@dataclass(slots=True)
class FollowerCounters:
    """What the sockets saw; the stream counts the rest."""

    malformed_frames: int = 0
    connects: int = 0
    last_heard_s: float = field(default_factory=time.monotonic)
    """When a message last came, or when following began; monotonic."""


class Follower:
    """Follows one engine rank until cancelled.

    `handle` gets the stream's effects in order, never an `Ask`; it runs on the event loop and must
    not block. What it raises ends `run`.

    Args:
        events: where the engine publishes.
        replay: where it answers for its past; None: it does not.
        timing: see `StreamTiming`.
        handle: takes effects.
        anchor: take this life up again; only with `replay`.
    """

    def __init__(
        self,
        events: Endpoint,
        replay: Endpoint | None,
        *,
        handle: Callable[[Sequence[Effect]], None],
        timing: StreamTiming | None = None,
        anchor: Anchor | None = None,
    ) -> None:
        timing = timing or StreamTiming()
        self.counters = FollowerCounters()
        self.stream = Stream(has_replay=replay is not None, timing=timing, anchor=anchor)
        self.connected = False
        self._events = events
        self._replay = replay
        self._handle = handle
        self._rest_s = timing.rest_s

    async def run(self) -> None:
        """Follow until cancelled; sockets are closed then.

        Raises:
            OSError: the address cannot be bound or is not understood.
        """
        sockets = _Sockets(self, self._events, self._replay, self._handle, self._rest_s)
        try:
            await sockets.run()
        finally:
            await sockets.close()


class _Sockets:
    """The sockets of one `run`."""

    def __init__(
        self,
        follower: Follower,
        events: Endpoint,
        replay: Endpoint | None,
        handle: Callable[[Sequence[Effect]], None],
        rest_s: float,
    ) -> None:
        self._follower = follower
        self._stream = follower.stream
        self._replay = replay
        self._handle = handle
        self._rest_s = rest_s
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._events = events
        self._live = Live(events, self._wake.set)
        self._malformed_said_s = -_MALFORMED_SAID_EVERY_S
        self._read_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._context: zmq.Context[zmq.SyncSocket] | None = None
        self._dealer: zmq.SyncSocket | None = None
        self._generation = 0

    async def run(self) -> None:
        await self._live.start()
        while True:
            self._arm()
            await self._wake.wait()
            await self._rest()
            self._wake.clear()
            more = self._read()
            self._act(self._stream.tick(time.monotonic()))
            if more:
                self._wake.set()  # a queue is not empty: let others run, then go on
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Let go of everything."""
        if self._timer is not None:
            self._timer.cancel()
        self._close_dealer()
        if self._context is not None:
            self._context.destroy(linger=0)
        await self._live.close()

    def _arm(self) -> None:
        """Be woken when the stream has something to do, though nothing comes."""
        due = self._stream.due
        if due is None or (self._timer is not None and self._timer_due <= due):
            return  # the timer that there is comes first, and then this is asked again
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(0.0, due - time.monotonic()) + _CLOCK_S
        self._timer, self._timer_due = self._loop.call_later(wait_s, self._on_timer), due

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()

    async def _rest(self) -> None:
        """Let company come to a message that follows closely on what was read.

        A burst is then read many at a time; a message that comes alone is read at once. Meanwhile
        nothing is received, for each arrival would wake the loop.
        """
        early_s = self._read_s + self._rest_s - self._loop.time()
        if early_s > 0 and not self._live.is_behind:
            self._live.pause()
            await asyncio.sleep(early_s)
            self._live.resume()

    def _read(self) -> bool:
        """Take what has come; True: there is more."""
        now = time.monotonic()
        for news in self._live.take():
            match news:
                case Opened():
                    self._follower.connected = True
                    self._follower.counters.connects += 1
                    self._act(self._stream.connected(now))
                case Closed():
                    self._follower.connected = self._live.is_open
                    if not self._live.is_open:
                        self._stream.disconnected()
                case Run():
                    self._on_run(news, now)
        return self._read_replies(now)

    def _on_run(self, run: Run, now: float) -> None:
        if run.malformed:
            self._on_malformed(run.malformed, run.first_malformed)
        if run.seqs:
            self._read_s = self._loop.time()
            self._follower.counters.last_heard_s = now
            self._act(self._stream.live_run(run.seqs, run.payloads, now))

    def _read_replies(self, now: float) -> bool:
        if self._dealer is None:
            return False
        generation = self._generation
        replies = _receive(self._dealer)
        for frames in replies:
            match self._parse(frames):
                case Message() as message:
                    effects = self._stream.replayed(generation, message.seq, message.payload, now)
                    self._act(effects)
                case ReplayEnd():
                    self._act(self._stream.replay_ended(generation, now))
                case None:
                    continue
        return len(replies) == _READ_AT_ONCE_MAX

    def _parse(self, frames: list[bytes]) -> Message | ReplayEnd | None:
        try:
            return parse_frames(frames)
        except MalformedMessage as error:
            self._on_malformed(1, error)
            return None

    def _on_malformed(self, messages: int, first: object) -> None:
        """Count them all; say it now and then, for a stream that is no engine's has no others."""
        self._follower.counters.malformed_frames += messages
        now_s = time.monotonic()
        if now_s - self._malformed_said_s >= _MALFORMED_SAID_EVERY_S:
            self._malformed_said_s = now_s
            log.warning("%s: %d malformed messages: %s", self._events, messages, first)

    def _act(self, effects: list[Effect]) -> None:
        """Carry effects out, in order."""
        told: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Ask):
                self._ask(effect)
            else:
                told.append(effect)
        if told:
            self._handle(told)

    def _ask(self, ask: Ask) -> None:
        self._close_dealer()
        if self._replay is None:
            return
        if self._context is None:
            self._context = zmq.Context()
        self._generation = ask.generation
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVHWM, _REPLAY_QUEUE_MESSAGES)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(self._replay.address)
        # A DEALER queues what it cannot send yet; it never blocks on its first message.
        dealer.send_multipart([b"", ask.start.to_bytes(8, "big")], zmq.NOBLOCK)
        self._dealer = dealer
        # The descriptor tells of news once; everything that waits is read each time.
        self._loop.add_reader(int(dealer.getsockopt(zmq.FD)), self._wake.set)
        self._wake.set()  # sending may have taken note of what has come already

    def _close_dealer(self) -> None:
        if self._dealer is not None:
            self._loop.remove_reader(int(self._dealer.getsockopt(zmq.FD)))
            self._dealer.close(linger=0)
            self._dealer = None


def _receive(socket: zmq.SyncSocket) -> list[list[bytes]]:
    """Return what waits in a socket's queue, at most so much that others get their turn."""
    received: list[list[bytes]] = []
    while len(received) < _READ_AT_ONCE_MAX:
        try:
            received.append(socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            break
    return received
