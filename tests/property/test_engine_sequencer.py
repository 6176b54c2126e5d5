"""The sequencer against a model of an engine whose messages, replies and connections get lost.

Whatever is lost: between two resets all messages are of one engine process, they are in order, and a
`Hole` covers exactly the numbers that were never sent. When nothing more is lost, every message that
the engine still keeps is delivered.
"""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvatlas_engines.effects import (
    Deliver,
    DeliverMany,
    Effect,
    Hole,
    RequestReplay,
    Resumed,
    StreamReset,
)
from kvatlas_engines.sequencer import FollowerSettings, MessageSequencer

KEPT = 12
TIMING = FollowerSettings(
    replay_timeout_s=2.0, idle_s=5.0, attempts_max=3, buffer_messages_max=4, buffer_bytes_max=200
)


@dataclass
class Engine:
    process: int = 0
    next_seq: int = 0
    never_sent: set[int] = field(default_factory=set[int])
    kept: deque[tuple[int, bytes]] = field(
        default_factory=lambda: deque[tuple[int, bytes]](maxlen=KEPT)
    )

    def send(self) -> tuple[int, bytes]:
        message = (self.next_seq, f"{self.process}-{self.next_seq}".encode())
        self.kept.append(message)
        self.next_seq += 1
        return message


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        self.sequencer = MessageSequencer(has_replay=True, settings=TIMING)
        self.now = 0.0
        self.runs: list[list[Deliver | Hole]] = [[]]
        self.request: RequestReplay | None = None
        self.reply_lost_before: set[tuple[int, int]] = set()
        self.never_sent: dict[int, set[int]] = {0: self.engine.never_sent}
        self.take(self.sequencer.on_connected(self.now))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case RequestReplay():
                    self.request = effect
                case StreamReset():
                    self.runs.append([])
                case DeliverMany():
                    numbered = enumerate(effect.payloads, start=effect.seq)
                    self.runs[-1].extend(Deliver(seq, payload) for seq, payload in numbered)
                case Deliver() | Hole():
                    self.runs[-1].append(effect)
                case Resumed():
                    raise AssertionError("there was no resume point")

    @rule(arrives=st.lists(st.booleans(), min_size=1, max_size=4), together=st.booleans())
    def engine_sends(self, *, arrives: list[bool], together: bool) -> None:
        sent = [(self.engine.send(), arrived) for arrived in arrives]
        arrived = [message for message, is_there in sent if is_there]
        if together:
            seqs, payloads = [seq for seq, _ in arrived], [payload for _, payload in arrived]
            self.take(self.sequencer.on_live_many(seqs, payloads, self.now))
        else:
            for message in arrived:
                self.take(self.sequencer.on_live(*message, self.now))

    @rule()
    def engine_fails_to_encode(self) -> None:
        self.engine.never_sent.add(self.engine.next_seq)
        self.engine.next_seq += 1

    @rule(sent_before_we_reconnect=st.integers(0, 15))
    def engine_restarts(self, sent_before_we_reconnect: int) -> None:
        self.engine = Engine(process=self.engine.process + 1)
        self.never_sent[self.engine.process] = self.engine.never_sent
        self.sequencer.on_disconnected()
        for _ in range(sent_before_we_reconnect):
            self.engine.send()
        self.request = None  # it was lost with the connection
        self.take(self.sequencer.on_connected(self.now))

    @rule()
    def connection_breaks(self) -> None:
        self.sequencer.on_disconnected()
        self.take(self.sequencer.on_connected(self.now))

    @precondition(lambda self: self.request is not None)
    @rule(loses=st.sets(st.integers(0, KEPT), max_size=2), end=st.booleans())
    def engine_answers(self, loses: set[int], *, end: bool) -> None:
        self.answer(loses, end=end)

    def answer(self, loses: set[int], *, end: bool) -> None:
        """One whole answer; a reply may be lost, but not the same one twice."""
        request = self.request
        assert request is not None
        self.request = None
        replies = [message for message in self.engine.kept if message[0] >= request.start]
        for index, (seq, payload) in enumerate(replies):
            lost = (self.engine.process, seq)
            if index in loses and index > 0 and lost not in self.reply_lost_before:
                self.reply_lost_before.add(lost)
                continue
            self.take(self.sequencer.on_replayed(request.generation, seq, payload, self.now))
        if end:
            self.take(self.sequencer.on_replay_end(request.generation, self.now))

    @rule(seconds=st.sampled_from([0.1, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.sequencer.tick(self.now))

    @invariant()
    def messages_between_resets_are_one_processes_in_order(self) -> None:
        for run in self.runs:
            expected: int | None = None
            of_engine = {e.payload.split(b"-")[0] for e in run if isinstance(e, Deliver)}
            assert len(of_engine) <= 1, run
            for effect in run:
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
        """Once nothing is lost any more, every message that the engine keeps is delivered."""
        self.take(self.sequencer.on_connected(self.now))
        for _ in range(20):
            while self.request is not None:
                self.answer(set(), end=True)
            self.now += 1.0
            self.take(self.sequencer.tick(self.now))
        self.messages_between_resets_are_one_processes_in_order()
        messages = [e for e in self.runs[-1] if isinstance(e, Deliver)]
        delivered = [message.payload for message in messages]
        # After too many requests without an answer a run may begin at its first live message.
        gave_up = self.sequencer.counters.replay_timeouts >= TIMING.attempts_max
        begins = messages[0].seq if gave_up and messages else 0
        kept = [payload for seq, payload in self.engine.kept if seq >= begins]
        assert delivered[len(delivered) - len(kept) :] == kept
        if not kept:
            assert not delivered


Machine.TestCase.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
TestSequencerFollowsTheEngine = Machine.TestCase
