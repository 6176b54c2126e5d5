"""The stream against a model of an engine whose messages, replies and connections get lost.

Whatever is lost, one follower life never mixes two engine lives, delivers in order, and says Hole
for exactly the numbers that were never sent. When nothing more is lost, everything that the engine
still keeps arrives.
"""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvatlas_engines.anchor import Resumed
from kvatlas_engines.stream import (
    Ask,
    Deliver,
    DeliverRun,
    Effect,
    Hole,
    LifeEnd,
    NewLife,
    Stream,
    StreamTiming,
)

KEPT = 12
TIMING = StreamTiming(
    replay_timeout_s=2.0, idle_s=5.0, attempts_max=3, buffer_messages_max=4, buffer_bytes_max=200
)


@dataclass
class Engine:
    life: int = 0
    next_seq: int = 0
    never_sent: set[int] = field(default_factory=set[int])
    kept: deque[tuple[int, bytes]] = field(
        default_factory=lambda: deque[tuple[int, bytes]](maxlen=KEPT)
    )

    def send(self) -> tuple[int, bytes]:
        message = (self.next_seq, f"{self.life}-{self.next_seq}".encode())
        self.kept.append(message)
        self.next_seq += 1
        return message


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        self.stream = Stream(has_replay=True, timing=TIMING)
        self.now = 0.0
        self.lives: list[list[Deliver | Hole]] = [[]]
        self.ends: list[LifeEnd] = []
        self.question: Ask | None = None
        self.reply_lost_before: set[tuple[int, int]] = set()
        self.never_sent: dict[int, set[int]] = {0: self.engine.never_sent}
        self.take(self.stream.connected(self.now))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ask():
                    self.question = effect
                case NewLife():
                    self.lives.append([])
                    self.ends.append(effect.reason)
                case DeliverRun():
                    numbered = enumerate(effect.payloads, start=effect.seq)
                    self.lives[-1].extend(Deliver(seq, payload) for seq, payload in numbered)
                case Deliver() | Hole():
                    self.lives[-1].append(effect)
                case Resumed():
                    raise AssertionError("no life was to be taken up again")

    @rule(arrives=st.lists(st.booleans(), min_size=1, max_size=4), together=st.booleans())
    def engine_sends(self, *, arrives: list[bool], together: bool) -> None:
        sent = [(self.engine.send(), arrived) for arrived in arrives]
        arrived = [message for message, is_there in sent if is_there]
        if together:
            seqs, payloads = [seq for seq, _ in arrived], [payload for _, payload in arrived]
            self.take(self.stream.live_run(seqs, payloads, self.now))
        else:
            for message in arrived:
                self.take(self.stream.live(*message, self.now))

    @rule()
    def engine_fails_to_encode(self) -> None:
        self.engine.never_sent.add(self.engine.next_seq)
        self.engine.next_seq += 1

    @rule(sent_before_we_reconnect=st.integers(0, 15))
    def engine_restarts(self, sent_before_we_reconnect: int) -> None:
        self.engine = Engine(life=self.engine.life + 1)
        self.never_sent[self.engine.life] = self.engine.never_sent
        self.stream.disconnected()
        for _ in range(sent_before_we_reconnect):
            self.engine.send()
        self.question = None  # the question was lost with the connection
        self.take(self.stream.connected(self.now))

    @rule()
    def connection_breaks(self) -> None:
        self.stream.disconnected()
        self.take(self.stream.connected(self.now))

    @precondition(lambda self: self.question is not None)
    @rule(loses=st.sets(st.integers(0, KEPT), max_size=2), end=st.booleans())
    def engine_answers(self, loses: set[int], *, end: bool) -> None:
        self.answer(loses, end=end)

    def answer(self, loses: set[int], *, end: bool) -> None:
        """One whole answer; a reply may be lost, but not the same one twice."""
        question = self.question
        assert question is not None
        self.question = None
        replies = [message for message in self.engine.kept if message[0] >= question.start]
        for index, (seq, payload) in enumerate(replies):
            lost = (self.engine.life, seq)
            if index in loses and index > 0 and lost not in self.reply_lost_before:
                self.reply_lost_before.add(lost)
                continue
            self.take(self.stream.replayed(question.generation, seq, payload, self.now))
        if end:
            self.take(self.stream.replay_ended(question.generation, self.now))

    @rule(seconds=st.sampled_from([0.1, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.stream.tick(self.now))

    @invariant()
    def every_life_is_one_engines_messages_in_order(self) -> None:
        for life in self.lives:
            expected: int | None = None
            of_engine = {e.payload.split(b"-")[0] for e in life if isinstance(e, Deliver)}
            assert len(of_engine) <= 1, life
            for effect in life:
                if isinstance(effect, Hole):
                    assert effect.first == expected
                    numbers = set(range(effect.first, effect.last + 1))
                    assert numbers <= self.never_sent[int(min(of_engine))]
                    expected = effect.last + 1
                else:
                    assert expected in (None, effect.seq)
                    assert effect.payload.split(b"-")[1] == str(effect.seq).encode()
                    expected = effect.seq + 1

    def teardown(self) -> None:
        """Once nothing is lost any more, all arrives that the engine keeps."""
        self.take(self.stream.connected(self.now))
        for _ in range(20):
            while self.question is not None:
                self.answer(set(), end=True)
            self.now += 1.0
            self.take(self.stream.tick(self.now))
        self.every_life_is_one_engines_messages_in_order()
        messages = [e for e in self.lives[-1] if isinstance(e, Deliver)]
        delivered = [message.payload for message in messages]
        # Too many questions unanswered in a row: then a life may begin where it was heard first.
        gave_up = self.stream.counters.replay_timeouts >= TIMING.attempts_max
        begins = messages[0].seq if gave_up and messages else 0
        kept = [payload for seq, payload in self.engine.kept if seq >= begins]
        assert delivered[len(delivered) - len(kept) :] == kept
        if not kept:
            assert not delivered


Machine.TestCase.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
TestStreamFollowsTheEngine = Machine.TestCase
