"""Puts an engine's messages into order: finds gaps, has them replayed, notices restarts. Pure.

An engine numbers its messages from 0 for as long as its process lives. On the way they can be lost (a
full queue drops the newest). The engine can restart and count from 0 again. It can skip a number,
because it did not send that message. A replay can be cut short. Only the messages delivered here are
certain, so every request is "replay from the last message delivered". The answer shows the case:

    the answer begins with ...        meaning
    that message, byte for byte       same process; the rest fills the gap
    that number, another payload      the engine restarted and has passed our number
    a later number                    history is gone: the engine no longer keeps our message
    END at once, after a reconnect    the engine restarted and has not reached our number
    END at once, otherwise            the engine keeps no history; an open gap stays open
    nothing in time                   request again, from the last message delivered by then; after a
                                      reconnect nothing is delivered before an answer

A number that is missing in two answers in a row, each from a message that we hold, was never sent: a
permanent hole. One answer is not enough, since a slow reader loses replies too. While an answer is
outstanding, live messages wait in a bounded buffer; those that do not fit are lost like any message,
and found again as a gap. Before the first delivery, and after a reset, the request is from 0.

Another process can resume a stream from a `ResumePoint`, the digest of the last message delivered.
Nothing is delivered before the engine has answered with that very message (`Resumed`) or the stream
was reset (`StreamReset`).

The driver calls one method per input, carries out the effects in order, and calls `tick` when it is
`due`. Only answers to the newest `RequestReplay` count (`generation`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvatlas_engines.effects import (
    Deliver,
    DeliverMany,
    Effect,
    Hole,
    RequestReplay,
    ResetReason,
    Resumed,
    ResumePoint,
    StreamReset,
    payload_digest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSettings:
    """Times to wait and amounts to hold."""

    replay_timeout_s: float = 2.0
    """Silence after which the answer to a replay request counts as lost."""
    idle_s: float = 5.0
    """Silence after which a replay is requested, since the last messages may have been lost."""
    attempts_max: int = 3
    """Requests in a row without an answer after which the replay endpoint counts as dead; answers in
    a row that bring nothing new after which a gap counts as lost."""
    read_interval_s: float = 0.001
    """Least time between two reads, so that a burst is read many messages at a time. A message that
    comes alone is read at once."""
    buffer_messages_max: int = 10_000
    """Live messages that wait for a replay; further ones are dropped and found again as a gap."""
    buffer_bytes_max: int = 64 << 20


@dataclass(slots=True)
class SequencerCounters:
    """Counts since the start; read by metrics."""

    messages: int = 0
    duplicates: int = 0
    gaps: int = 0
    replays: int = 0
    replay_timeouts: int = 0
    buffer_drops: int = 0


@dataclass(slots=True)
class _ReplayRequest:
    """A replay that was requested and has not ended."""

    start: int
    generation: int
    deadline: float
    anchored: bool
    """We hold the message `start`, so the first reply must be that message."""
    previous: int | None = None
    """The last number in the answer so far."""
    broken: bool = False
    """The answer skipped numbers that are not known as holes: the rest is read, but not delivered."""
    skips: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])


class MessageSequencer:
    """Orders the numbered messages of one engine rank, also over restarts of the engine.

    Args:
        has_replay: the engine has a replay endpoint.
        settings: see `FollowerSettings`.
        resume_point: continue behind this message; only with `has_replay`.
    """

    def __init__(
        self,
        *,
        has_replay: bool,
        settings: FollowerSettings,
        resume_point: ResumePoint | None = None,
    ) -> None:
        self.counters = SequencerCounters()
        self._settings = settings
        self._has_replay = has_replay
        self._replay_answers = has_replay
        self._connected = False
        self._unverified = resume_point is not None
        """Nothing has shown that the engine is still the process that sent `_last`."""
        self._last: Deliver | ResumePoint | None = resume_point
        """The last message delivered since the last reset."""
        self._live_last: int | None = None
        self._last_input_s = 0.0
        self._request: _ReplayRequest | None = None
        self._generation = 0
        self._timeouts = 0
        self._empty_answers = 0
        self._fruitless = 0  # whole answers in a row that brought nothing new
        self._suspected: set[tuple[int, int]] = set()
        self._buffer: deque[Deliver] = deque()
        self._buffer_bytes = 0

    @property
    def last_seq(self) -> int | None:
        """The number of the last message delivered since the last reset."""
        return None if self._last is None else self._last.seq

    @property
    def last_message(self) -> Deliver | None:
        """The last message delivered since the last reset; None also before the stream has `Resumed`."""
        return self._last if isinstance(self._last, Deliver) else None

    def on_connected(self, now: float) -> list[Effect]:
        """The live socket has a peer, perhaps another process than before."""
        self._connected = True
        self._last_input_s = now
        if not self._has_replay:
            return []
        self._unverified = self._last is not None
        self._replay_answers = True
        self._timeouts = 0
        self._clear_buffer()  # the replay brings back what the same process sent
        return [self._request_replay(now)]

    def on_disconnected(self) -> None:
        """The live socket has no peer."""
        self._connected = False

    def on_live(self, seq: int, payload: bytes, now: float) -> list[Effect]:
        """A message came on the live socket."""
        self._last_input_s = now
        self.counters.messages += 1
        effects: list[Effect] = []
        if self._repeats_last(seq, payload):
            self.counters.duplicates += 1
            return effects
        if self._live_last is not None and seq <= self._live_last:
            effects.append(self._reset(ResetReason.RESTARTED))
            self._clear_buffer()
        self._live_last = seq
        self._hold(Deliver(seq, payload))
        effects.extend(self._drain(now))
        return effects

    def on_live_many(
        self, seqs: Sequence[int], payloads: Sequence[bytes], now: float
    ) -> list[Effect]:
        """Messages came on the live socket, in this order: as `on_live` for each, but faster."""
        if self._continues(seqs):
            self._last_input_s = now
            self.counters.messages += len(seqs)
            self._live_last = seqs[-1]
            self._last = Deliver(seqs[-1], payloads[-1])
            return [DeliverMany(seqs[0], payloads)]
        return [
            effect
            for seq, payload in zip(seqs, payloads, strict=True)
            for effect in self.on_live(seq, payload, now)
        ]

    def on_replayed(self, generation: int, seq: int, payload: bytes, now: float) -> list[Effect]:
        """A message of an answer came."""
        request = self._request
        if request is None or request.generation != generation:
            return []
        self._answered(request, now)
        if request.previous is None and request.anchored:
            wrong = self._compare(seq, payload)
            if wrong is not None:
                return [self._reset(wrong), self._request_replay(now)]
            request.previous = seq
            return self._resume(Deliver(seq, payload))
        if request.previous is not None and seq <= request.previous:
            self.counters.duplicates += 1
            return []
        effects = self._advance(request, Deliver(seq, payload))
        request.previous = seq
        return effects

    def on_replay_end(self, generation: int, now: float) -> list[Effect]:
        """The end of an answer came."""
        request = self._request
        if request is None or request.generation != generation:
            return []
        self._answered(request, now)
        self._timeouts = 0
        self._request = None
        if request.previous is None:
            return self._nothing_replayed(request, now)
        self._empty_answers = 0
        self._suspected = request.skips
        missing = request.broken or self._gap_waits()
        held_before = request.start if request.anchored else None
        self._fruitless = self._fruitless + 1 if missing and self.last_seq == held_before else 0
        if self._fruitless >= self._settings.attempts_max:
            self._fruitless = 0
            return self._give_up(ResetReason.GAP_NOT_RECOVERED, now)
        if request.broken:
            return [self._request_replay(now)]
        return self._drain(now)

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        request = self._request
        if request is not None:
            return self._timed_out(request, now) if now >= request.deadline else []
        if (
            self._has_replay
            and self._connected
            and now - self._last_input_s >= self._settings.idle_s
        ):
            self._last_input_s = now
            return [self._request_replay(now)]
        return []

    @property
    def due(self) -> float | None:
        """The time of the next `tick` that has an effect, unless there is an input before; None: never."""
        if self._request is not None:
            return self._request.deadline
        if self._has_replay and self._connected:
            return self._last_input_s + self._settings.idle_s
        return None

    # --- replays ---

    def _request_replay(self, now: float) -> RequestReplay:
        self._generation += 1
        self.counters.replays += 1
        anchored = self._last is not None
        start = 0 if self._last is None else self._last.seq
        self._request = _ReplayRequest(
            start, self._generation, now + self._settings.replay_timeout_s, anchored
        )
        return RequestReplay(start, self._generation)

    def _answered(self, request: _ReplayRequest, now: float) -> None:
        request.deadline = now + self._settings.replay_timeout_s
        self._replay_answers = True

    def _compare(self, seq: int, payload: bytes) -> ResetReason | None:
        """Compare the first reply with the message that we hold; return the reason for a reset, if any."""
        if self._last is None or seq != self._last.seq:
            return ResetReason.HISTORY_GONE
        is_same = (
            payload_digest(payload) == self._last.digest
            if isinstance(self._last, ResumePoint)
            else payload == self._last.payload
        )
        if not is_same:
            return ResetReason.RESTARTED
        self._unverified = False
        return None

    def _resume(self, message: Deliver) -> list[Effect]:
        """The reply confirms our message; report it if the message is the resume point."""
        if not isinstance(self._last, ResumePoint):
            return []
        self._last = message
        return [Resumed()]

    def _advance(self, request: _ReplayRequest, message: Deliver) -> list[Effect]:
        """Deliver one replayed message, unless numbers before it are missing for the first time."""
        before = request.previous
        if before is not None and message.seq > before + 1:
            request.skips.add((before, message.seq))
            if not self._was_missing(before, message.seq):
                request.broken = True
        if request.broken or (self._last is not None and message.seq <= self._last.seq):
            return []
        effects: list[Effect] = []
        if self._last is not None and message.seq > self._last.seq + 1:
            effects.append(Hole(self._last.seq + 1, message.seq - 1))
        self._last = message
        return [*effects, message]

    def _was_missing(self, before: int, after: int) -> bool:
        """Whether all numbers between the two were missing in the answer before this one, too.

        That answer may have skipped more: a reply lost there may have come now.
        """
        return any(first <= before and after <= last for first, last in self._suspected)

    def _nothing_replayed(self, request: _ReplayRequest, now: float) -> list[Effect]:
        """The end came alone. Request once more, since replies can be lost, then believe it."""
        self._empty_answers += 1
        if request.anchored:
            if self._empty_answers == 1:
                return [self._request_replay(now)]
            self._empty_answers = 0
            if self._unverified:
                return [self._reset(ResetReason.RESTARTED), self._request_replay(now)]
            return self._give_up(ResetReason.HISTORY_GONE, now)
        if self._empty_answers == 1 and self._buffer:
            return [self._request_replay(now)]  # these may have been sent after the request
        self._empty_answers = 0
        return self._give_up(ResetReason.HISTORY_GONE, now)

    def _timed_out(self, request: _ReplayRequest, now: float) -> list[Effect]:
        """No end came in time; the messages of the answer count."""
        self.counters.replay_timeouts += 1
        self._timeouts += 1
        self._suspected |= request.skips
        if self._timeouts < self._settings.attempts_max:
            return [self._request_replay(now)]
        self._timeouts = 0
        self._replay_answers = request.previous is not None
        return self._give_up(ResetReason.GAP_NOT_RECOVERED, now)

    def _give_up(self, reason: ResetReason, now: float) -> list[Effect]:
        """Continue without an answer, from the messages that wait.

        After a reconnect without an answer they may be another process's, so the stream is reset.
        """
        self._request = None
        if not self._unverified:
            self._drop_duplicates()
        effects = self._jump(reason)
        return effects + self._drain(now)

    def _jump(self, reason: ResetReason) -> list[Effect]:
        """Continue at the first message that waits, over a gap that cannot be filled."""
        if not self._buffer:
            # No message waits. A stream that waits to resume gives up its resume point.
            return [self._reset(reason)] if isinstance(self._last, ResumePoint) else []
        contiguous = self._last is not None and self._buffer[0].seq == self._last.seq + 1
        if contiguous and not self._unverified:
            return []
        effects: list[Effect] = []
        if self._last is not None:
            live_last = self._live_last
            effects.append(self._reset(reason))
            self._live_last = live_last
        self._last = self._unbuffer()
        return [*effects, self._last]

    def _reset(self, reason: ResetReason) -> StreamReset:
        self._last = None
        self._live_last = None
        self._request = None
        self._unverified = False
        self._empty_answers = 0
        self._fruitless = 0
        self._suspected = set()
        return StreamReset(reason)

    # --- live messages ---

    def _repeats_last(self, seq: int, payload: bytes) -> bool:
        """Whether it is the last message again, byte for byte, which no other process would send."""
        last = self.last_message
        return last is not None and seq == last.seq == self._live_last and payload == last.payload

    def _continues(self, seqs: Sequence[int]) -> bool:
        """Whether these are the next messages, with no request and no buffered message before them."""
        if not seqs or self._last is None or self._unverified or self._buffer:
            return False
        first = self._last.seq + 1
        return (
            self._request is None
            and seqs[0] == first
            and (self._live_last is None or first > self._live_last)
            and list(seqs) == list(range(first, first + len(seqs)))
        )

    def _drain(self, now: float) -> list[Effect]:
        """Deliver the messages that wait, up to a gap."""
        effects: list[Effect] = []
        while self._buffer and self._request is None:
            if self._unverified:
                effects.append(self._request_replay(now))
                break
            self._drop_duplicates()
            if not self._buffer:
                break
            expected = 0 if self._last is None else self._last.seq + 1
            if self._buffer[0].seq == expected:
                self._last = self._unbuffer()
                effects.append(self._last)
            else:
                effects.extend(self._on_gap(now))
        return effects

    def _on_gap(self, now: float) -> list[Effect]:
        """Messages are missing before the first one that waits."""
        self.counters.gaps += 1
        if self._replay_answers or (self._has_replay and self._last is None):
            return [self._request_replay(now)]
        return self._jump(ResetReason.GAP_NOT_RECOVERED)

    def _drop_duplicates(self) -> None:
        """Drop waiting messages that a replay has delivered."""
        while self._last is not None and self._buffer and self._buffer[0].seq <= self._last.seq:
            self.counters.duplicates += 1
            self._unbuffer()

    def _gap_waits(self) -> bool:
        """Whether all waiting messages are behind a gap, and there are some."""
        if self._last is None:
            return False
        later = [message.seq for message in self._buffer if message.seq > self._last.seq]
        return bool(later) and later[0] != self._last.seq + 1

    def _hold(self, message: Deliver) -> None:
        settings = self._settings
        full = self._buffer_bytes + len(message.payload) > settings.buffer_bytes_max
        if self._buffer and (full or len(self._buffer) >= settings.buffer_messages_max):
            self.counters.buffer_drops += 1
            return
        self._buffer.append(message)
        self._buffer_bytes += len(message.payload)

    def _unbuffer(self) -> Deliver:
        message = self._buffer.popleft()
        self._buffer_bytes -= len(message.payload)
        return message

    def _clear_buffer(self) -> None:
        self._buffer.clear()
        self._buffer_bytes = 0
