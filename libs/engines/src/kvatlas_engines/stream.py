"""What an engine's sequence numbers mean: the state machine behind the follower. Pure.

An engine numbers its messages from 0 for as long as it lives. On the way to us they can be lost (a
full queue drops the newest), the engine can be restarted and count anew, a number can be used up by
a message that was never sent, and a replay can be cut short. The one safe anchor is a message that
we hold: every question about the past is "replay from the last message I delivered", and the answer
tells the cases apart.

    the answer begins with ...        means
    that message, byte for byte       same life; what follows fills the gap
    that number, another payload      the engine was restarted and has passed our number
    a later number                    history is gone: the engine no longer keeps our message
    END at once, after a reconnect    the engine was restarted and has not reached our number
    END at once, otherwise            the engine keeps no history; an open gap stays one
    nothing in time                   ask again, from the last message delivered by then; after a
                                      reconnect nothing is delivered until there is an answer

A number that is missing inside two answers in a row, each from a good anchor, was never sent: a
permanent hole. One answer is not enough, since a slow reader loses replies too. While an answer is
outstanding, live messages wait in a bounded buffer; what does not fit is lost like any message and
found again as a gap. A life in which nothing was delivered yet asks from 0; so does a new one.

A life can be taken up again by another process, which knows the digest of the last message that was
delivered (`Anchor`). Nothing is delivered before the engine has answered with that very message
(`Resumed`) or the life has ended (`NewLife`).

Whoever drives this calls one method per input, carries out the effects in order, and calls `tick`
when it is `due`. Only the effects of the newest `Ask` may be fed back (`generation`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvatlas_engines.anchor import Anchor, Resumed, digest_of
from kvatlas_engines.stream_terms import LifeEnd, StreamCounters, StreamTiming

__all__ = [
    "Ask",
    "Deliver",
    "DeliverRun",
    "Effect",
    "Hole",
    "LifeEnd",
    "NewLife",
    "Stream",
    "StreamCounters",
    "StreamTiming",
]


@dataclass(frozen=True, slots=True)
class Deliver:
    """The next message of this life."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class DeliverRun:
    """The next messages of this life, numbered from `seq` on; as many `Deliver`s."""

    seq: int
    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Ask:
    """Request a replay from `start` on a fresh socket; abandon the one before."""

    start: int
    generation: int


@dataclass(frozen=True, slots=True)
class Hole:
    """The engine never sent these numbers, and never will."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class NewLife:
    """Forget what was delivered: what comes next stands on nothing before it."""

    reason: LifeEnd


Effect = Deliver | DeliverRun | Ask | Hole | NewLife | Resumed


@dataclass(slots=True)
class _Question:
    start: int
    generation: int
    deadline: float
    anchored: bool
    """`start` is a message that we hold: the first reply must be that message."""
    previous: int | None = None
    """The last number that this answer brought."""
    broken: bool = False
    """The answer skipped numbers that are not known as holes: read on, deliver no more."""
    skips: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])


class Stream:
    """Follows one engine's numbered messages through all of its lives.

    Args:
        has_replay: someone answers questions about the past.
        timing: how long to wait.
        anchor: take this life up again; only with `has_replay`.
    """

    def __init__(
        self, *, has_replay: bool, timing: StreamTiming, anchor: Anchor | None = None
    ) -> None:
        self.counters = StreamCounters()
        self._timing = timing
        self._has_replay = has_replay
        self._replay_answers = has_replay
        self._connected = False
        # A reconnect since the anchor was last compared, or it never was.
        self._unverified = anchor is not None
        self._last: Deliver | Anchor | None = anchor
        self._live_last: int | None = None
        self._heard = 0.0
        self._question: _Question | None = None
        self._generation = 0
        self._timeouts = 0
        self._empty_answers = 0
        self._fruitless = 0  # whole answers in a row that brought nothing new
        self._suspected: set[tuple[int, int]] = set()
        self._buffer: deque[Deliver] = deque()
        self._buffer_bytes = 0

    @property
    def last_seq(self) -> int | None:
        """The last message delivered in this life."""
        return None if self._last is None else self._last.seq

    @property
    def last_message(self) -> Deliver | None:
        """The same with its payload; None also before a life that is taken up has `Resumed`."""
        return self._last if isinstance(self._last, Deliver) else None

    def connected(self, now: float) -> list[Effect]:
        """The live socket has a peer (again): it may be another engine than before."""
        self._connected = True
        self._heard = now
        if not self._has_replay:
            return []
        self._unverified = self._last is not None
        self._replay_answers = True
        self._timeouts = 0
        self._clear_buffer()  # of the same life the replay brings it back
        return [self._ask(now)]

    def disconnected(self) -> None:
        """The live socket has no peer."""
        self._connected = False

    def live(self, seq: int, payload: bytes, now: float) -> list[Effect]:
        """A message came on the live socket."""
        self._heard = now
        self.counters.messages += 1
        effects: list[Effect] = []
        if self._is_last_again(seq, payload):
            self.counters.duplicates += 1
            return effects
        if self._live_last is not None and seq <= self._live_last:
            effects.append(self._end_life(LifeEnd.RESTARTED))
            self._clear_buffer()
        self._live_last = seq
        self._hold(Deliver(seq, payload))
        effects.extend(self._drain(now))
        return effects

    def live_run(self, seqs: Sequence[int], payloads: Sequence[bytes], now: float) -> list[Effect]:
        """Messages came on the live socket, in this order: as `live` for each, but quicker."""
        if self._goes_on(seqs):
            self._heard = now
            self.counters.messages += len(seqs)
            self._live_last = seqs[-1]
            self._last = Deliver(seqs[-1], payloads[-1])
            return [DeliverRun(seqs[0], payloads)]
        return [
            effect
            for seq, payload in zip(seqs, payloads, strict=True)
            for effect in self.live(seq, payload, now)
        ]

    def replayed(self, generation: int, seq: int, payload: bytes, now: float) -> list[Effect]:
        """A message came in answer to a question."""
        question = self._question
        if question is None or question.generation != generation:
            return []
        self._answered(question, now)
        if question.previous is None and question.anchored:
            wrong = self._compare_anchor(seq, payload)
            if wrong is not None:
                return [self._end_life(wrong), self._ask(now)]
            question.previous = seq
            return self._resume(Deliver(seq, payload))
        if question.previous is not None and seq <= question.previous:
            self.counters.duplicates += 1
            return []
        effects = self._advance(question, Deliver(seq, payload))
        question.previous = seq
        return effects

    def replay_ended(self, generation: int, now: float) -> list[Effect]:
        """The END of an answer came."""
        question = self._question
        if question is None or question.generation != generation:
            return []
        self._answered(question, now)
        self._timeouts = 0
        self._question = None
        if question.previous is None:
            return self._nothing_replayed(question, now)
        self._empty_answers = 0
        self._suspected = question.skips
        missing = question.broken or self._gap_waits()
        self._fruitless = self._fruitless + 1 if missing and self.last_seq == question.start else 0
        if self._fruitless >= self._timing.attempts_max:
            self._fruitless = 0
            return self._give_up(LifeEnd.GAP_NOT_RECOVERED, now)
        if question.broken:
            return [self._ask(now)]
        return self._drain(now)

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        question = self._question
        if question is not None:
            return self._timed_out(question, now) if now >= question.deadline else []
        if self._has_replay and self._connected and now - self._heard >= self._timing.idle_s:
            self._heard = now
            return [self._ask(now)]
        return []

    @property
    def due(self) -> float | None:
        """When `tick` next has something to do, unless something comes; None: never."""
        if self._question is not None:
            return self._question.deadline
        if self._has_replay and self._connected:
            return self._heard + self._timing.idle_s
        return None

    # --- questions ---

    def _ask(self, now: float) -> Ask:
        self._generation += 1
        self.counters.replays += 1
        anchored = self._last is not None
        start = 0 if self._last is None else self._last.seq
        self._question = _Question(
            start, self._generation, now + self._timing.replay_timeout_s, anchored
        )
        return Ask(start, self._generation)

    def _answered(self, question: _Question, now: float) -> None:
        question.deadline = now + self._timing.replay_timeout_s
        self._replay_answers = True

    def _compare_anchor(self, seq: int, payload: bytes) -> LifeEnd | None:
        """Say what the first reply to an anchored question disproves, if anything."""
        if self._last is None or seq != self._last.seq:
            return LifeEnd.HISTORY_GONE
        is_same = (
            digest_of(payload) == self._last.digest
            if isinstance(self._last, Anchor)
            else payload == self._last.payload
        )
        if not is_same:
            return LifeEnd.RESTARTED
        self._unverified = False
        return None

    def _resume(self, message: Deliver) -> list[Effect]:
        """The anchor was confirmed; say so the first time."""
        if not isinstance(self._last, Anchor):
            return []
        self._last = message
        return [Resumed()]

    def _advance(self, question: _Question, message: Deliver) -> list[Effect]:
        """Deliver one replayed message if nothing unexplained is missing before it."""
        before = question.previous
        if before is not None and message.seq > before + 1:
            question.skips.add((before, message.seq))
            if (before, message.seq) not in self._suspected:
                question.broken = True
        if question.broken or (self._last is not None and message.seq <= self._last.seq):
            return []
        effects: list[Effect] = []
        if self._last is not None and message.seq > self._last.seq + 1:
            self.counters.holes += message.seq - self._last.seq - 1
            effects.append(Hole(self._last.seq + 1, message.seq - 1))
        self._last = message
        return [*effects, message]

    def _nothing_replayed(self, question: _Question, now: float) -> list[Effect]:
        """END came alone. Ask once more, since replies can be lost, then believe it."""
        self._empty_answers += 1
        if question.anchored:
            if self._empty_answers == 1:
                return [self._ask(now)]
            self._empty_answers = 0
            if self._unverified:
                return [self._end_life(LifeEnd.RESTARTED), self._ask(now)]
            return self._give_up(LifeEnd.HISTORY_GONE, now)
        if self._empty_answers == 1 and self._buffer:
            return [self._ask(now)]  # asked before these were sent, perhaps
        self._empty_answers = 0
        return self._give_up(LifeEnd.HISTORY_GONE, now)

    def _timed_out(self, question: _Question, now: float) -> list[Effect]:
        """No END came; what the answer did bring counts."""
        self.counters.replay_timeouts += 1
        self._timeouts += 1
        self._suspected |= question.skips
        if self._timeouts < self._timing.attempts_max:
            return [self._ask(now)]
        self._timeouts = 0
        self._replay_answers = question.previous is not None
        return self._give_up(LifeEnd.GAP_NOT_RECOVERED, now)

    def _give_up(self, reason: LifeEnd, now: float) -> list[Effect]:
        """Go on without an answer, from the messages that wait.

        After a reconnect that no one vouched for, they may be another engine's: a new life then.
        """
        self._question = None
        if not self._unverified:
            self._drop_duplicates()
        effects = self._jump(reason)
        return effects + self._drain(now)

    def _jump(self, reason: LifeEnd) -> list[Effect]:
        """Go on at the first message that waits, over a gap that no one can fill."""
        if not self._buffer:
            # Nobody waits but him who has a life to take up: it will not be.
            return [self._end_life(reason)] if isinstance(self._last, Anchor) else []
        contiguous = self._last is not None and self._buffer[0].seq == self._last.seq + 1
        if contiguous and not self._unverified:
            return []
        effects: list[Effect] = []
        if self._last is not None:
            live_last = self._live_last
            effects.append(self._end_life(reason))
            self._live_last = live_last
        self._last = self._unbuffer()
        return [*effects, self._last]

    def _end_life(self, reason: LifeEnd) -> NewLife:
        self.counters.lives_ended[reason] = self.counters.lives_ended.get(reason, 0) + 1
        self._last = None
        self._live_last = None
        self._question = None
        self._unverified = False
        self._empty_answers = 0
        self._fruitless = 0
        self._suspected = set()
        return NewLife(reason)

    # --- live messages ---

    def _is_last_again(self, seq: int, payload: bytes) -> bool:
        """Whether it is the last message, byte for byte: no other life says that, not even once."""
        last = self.last_message
        return last is not None and seq == last.seq == self._live_last and payload == last.payload

    def _goes_on(self, seqs: Sequence[int]) -> bool:
        """Whether these are simply the next messages, and nothing else is under way."""
        if not seqs or self._last is None or self._unverified or self._buffer:
            return False
        first = self._last.seq + 1
        return (
            self._question is None
            and seqs[0] == first
            and (self._live_last is None or first > self._live_last)
            and list(seqs) == list(range(first, first + len(seqs)))
        )

    def _drain(self, now: float) -> list[Effect]:
        """Deliver what waits, until a question has to be asked."""
        effects: list[Effect] = []
        while self._buffer and self._question is None:
            if self._unverified:
                effects.append(self._ask(now))
                break
            self._drop_duplicates()
            if not self._buffer:
                break
            expected = 0 if self._last is None else self._last.seq + 1
            if self._buffer[0].seq == expected:
                self._last = self._unbuffer()
                effects.append(self._last)
            else:
                self.counters.gaps += 1
                if self._replay_answers or (self._has_replay and self._last is None):
                    effects.append(self._ask(now))
                else:
                    effects.extend(self._jump(LifeEnd.GAP_NOT_RECOVERED))
        return effects

    def _drop_duplicates(self) -> None:
        """Drop what a replay has brought already."""
        while self._last is not None and self._buffer and self._buffer[0].seq <= self._last.seq:
            self.counters.duplicates += 1
            self._unbuffer()

    def _gap_waits(self) -> bool:
        """Whether messages wait, all of them behind a gap."""
        if self._last is None:
            return False
        later = [message.seq for message in self._buffer if message.seq > self._last.seq]
        return bool(later) and later[0] != self._last.seq + 1

    def _hold(self, message: Deliver) -> None:
        timing = self._timing
        full = self._buffer_bytes + len(message.payload) > timing.buffer_bytes_max
        if self._buffer and (full or len(self._buffer) >= timing.buffer_messages_max):
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
