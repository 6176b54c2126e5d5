"""Moves an engine's bytes into the stream's state machine: the sockets of one engine rank.

Three sockets: SUB for the live messages, its monitor for the connections behind it, and a DEALER
for each question about the past. The event loop watches their descriptors itself, since a poller
that is made anew for every wake-up costs more than what there is to read. A question gets a fresh DEALER, since replies to an abandoned one
must not mix with the new ones, and an engine ignores an identity that it has seen before.

Memory is bounded by the sockets' queues and the stream's buffer. Nothing here ever makes the engine
wait: what we do not read in time, the engine's own socket drops, and the stream finds it missing.

The order of reading matters once: data is taken off the SUB first and the monitor is read before it
is looked at. A connection's event is queued before its first message, so the stream hears of a
reconnect before it hears what the perhaps restarted engine says.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import parse_monitor_message

from kvatlas_engines.anchor import Anchor
from kvatlas_engines.endpoint import Endpoint
from kvatlas_engines.raw import MalformedMessage, Message, ReplayEnd, parse_frames
from kvatlas_engines.stream import Ask, Effect, Stream, StreamTiming

log = logging.getLogger(__name__)

_LIVE_QUEUE_MESSAGES = 20_000
_REPLAY_QUEUE_MESSAGES = 20_000  # engines keep 10,000 by default
_READ_AT_ONCE_MAX = 256
_TICK_S = 0.1
_REST_S = 0.001


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
        self.counters = FollowerCounters()
        self.stream = Stream(
            has_replay=replay is not None, timing=timing or StreamTiming(), anchor=anchor
        )
        self.connected = False
        self._events = events
        self._replay = replay
        self._handle = handle

    async def run(self) -> None:
        """Follow until cancelled; sockets are closed then.

        Raises:
            OSError: the address cannot be bound or is not understood.
        """
        context = zmq.Context()
        try:
            sockets = _Sockets(self, context, self._events, self._replay, self._handle)
            try:
                await sockets.run()
            finally:
                sockets.unwatch_all()
        finally:
            context.destroy(linger=0)


class _Sockets:
    """The sockets of one `run`."""

    def __init__(
        self,
        follower: Follower,
        context: "zmq.Context[zmq.SyncSocket]",
        events: Endpoint,
        replay: Endpoint | None,
        handle: Callable[[Sequence[Effect]], None],
    ) -> None:
        self._follower = follower
        self._stream = follower.stream
        self._context = context
        self._replay = replay
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._watched: set[int] = set()
        self._read_s = 0.0
        self._behind = False
        self._live = context.socket(zmq.SUB)
        self._live.setsockopt(zmq.RCVHWM, _LIVE_QUEUE_MESSAGES)
        self._live.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        self._monitor = self._live.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._dealer: zmq.SyncSocket | None = None
        self._generation = 0
        self._live.setsockopt(zmq.SUBSCRIBE, b"")
        self._watch(self._live)
        self._watch(self._monitor)
        if events.binds:
            self._live.bind(events.address)
        else:
            self._live.connect(events.address)

    async def run(self) -> None:
        while True:
            # A descriptor tells of news once; everything that waits is read each time.
            timer = self._loop.call_later(_TICK_S, self._wake.set)
            await self._wake.wait()
            timer.cancel()
            await self._rest()
            self._wake.clear()
            more = self._read()
            self._read_s = self._loop.time()
            self._behind = more
            if more:
                self._wake.set()  # the queue is not empty: let others run, then go on
                await asyncio.sleep(0)
            self._act(self._stream.tick(time.monotonic()))

    async def _rest(self) -> None:
        """Let company come to a message that follows closely on what was read.

        A burst is then read many at a time; a message that comes alone is read at once. Meanwhile
        nobody watches the descriptor, which would wake the loop for as long as it is readable.
        """
        early_s = self._read_s + _REST_S - self._loop.time()
        if early_s > 0 and not self._behind:
            self._unwatch(self._live)
            await asyncio.sleep(early_s)
            self._watch(self._live)

    def unwatch_all(self) -> None:
        """Let go of the descriptors, before their sockets are closed."""
        for descriptor in self._watched:
            self._loop.remove_reader(descriptor)
        self._watched.clear()

    def _watch(self, socket: zmq.SyncSocket) -> None:
        descriptor = int(socket.getsockopt(zmq.FD))
        self._watched.add(descriptor)
        self._loop.add_reader(descriptor, self._wake.set)

    def _unwatch(self, socket: zmq.SyncSocket) -> None:
        descriptor = int(socket.getsockopt(zmq.FD))
        self._watched.discard(descriptor)
        self._loop.remove_reader(descriptor)

    def _read(self) -> bool:
        """Read what has come, in the order the module's docstring explains; True: there is more."""
        live = _receive_live(self._live)
        for frames in _receive(self._monitor):
            self._on_monitor(frames)
        now = time.monotonic()
        if live:
            self._follower.counters.last_heard_s = now
            self._act(self._stream.live_run(*self._parse_live(live), now))
        more = len(live) == _READ_AT_ONCE_MAX
        return self._read_replies(now) or more

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

    def _parse_live(self, received: list[list[bytes]]) -> tuple[list[int], list[bytes]]:
        """Return the sequence numbers and the payloads of those that are messages."""
        seqs: list[int] = []
        payloads: list[bytes] = []
        for frames in received:
            message = self._parse(frames)
            if isinstance(message, Message):
                seqs.append(message.seq)
                payloads.append(message.payload)
        return seqs, payloads

    def _parse(self, frames: list[bytes]) -> Message | ReplayEnd | None:
        try:
            return parse_frames(frames)
        except MalformedMessage as error:
            self._follower.counters.malformed_frames += 1
            log.warning("malformed message from the engine: %s", error)
            return None

    def _on_monitor(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._follower.connected = True
            self._follower.counters.connects += 1
            self._act(self._stream.connected(time.monotonic()))
        elif event == zmq.EVENT_DISCONNECTED:
            self._follower.connected = False
            self._stream.disconnected()

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
        if self._dealer is not None:
            self._unwatch(self._dealer)
            self._dealer.close(linger=0)
            self._dealer = None
        if self._replay is None:
            return
        self._generation = ask.generation
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVHWM, _REPLAY_QUEUE_MESSAGES)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(self._replay.address)
        # A DEALER queues what it cannot send yet; it never blocks on its first message.
        dealer.send_multipart([b"", ask.start.to_bytes(8, "big")], zmq.NOBLOCK)
        self._dealer = dealer
        self._watch(dealer)
        self._wake.set()  # sending may have taken note of what has come already


def _receive(socket: zmq.SyncSocket) -> list[list[bytes]]:
    """Return what waits in a socket's queue, at most so much that others get their turn."""
    received: list[list[bytes]] = []
    while len(received) < _READ_AT_ONCE_MAX:
        try:
            received.append(socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            break
    return received


def _receive_live(socket: zmq.SyncSocket) -> list[list[bytes]]:
    """The same, of a socket whose messages have three frames.

    To ask after each frame whether another follows costs twice as much as to receive them all, so
    it is asked after the third. A message of fewer frames, which no engine sends, takes the next
    one along: that one is parsed, and what it lost is found missing like anything that is lost.
    """
    receive, no_wait, more = socket.recv, int(zmq.NOBLOCK), zmq.RCVMORE
    received: list[list[bytes]] = []
    frames: list[bytes] = []
    try:
        while len(received) < _READ_AT_ONCE_MAX:
            frames = []
            frames.append(receive(no_wait))
            frames.append(receive(no_wait))
            frames.append(receive(no_wait))
            while socket.getsockopt(more):
                frames.append(receive(no_wait))
            received.append(frames)
    except zmq.Again:
        if frames:
            received.append(frames)
    return received
