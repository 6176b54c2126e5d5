"""A life that another process followed is taken up again only if the engine shows its last message."""

from collections.abc import Sequence

import pytest

from kvatlas_engines.anchor import Anchor, Resumed, digest_of
from kvatlas_engines.stream import Ask, Deliver, Effect, LifeEnd, NewLife, Stream, StreamTiming

TIMING = StreamTiming(attempts_max=2)
ANCHOR = Anchor(2, digest_of(b"a-2"))


def connected() -> tuple[Stream, Ask]:
    stream = Stream(has_replay=True, timing=TIMING, anchor=ANCHOR)
    (ask,) = stream.connected(0.0)
    assert isinstance(ask, Ask)
    assert ask.start == ANCHOR.seq
    return stream, ask


def answer(stream: Stream, ask: Ask, *payloads: str) -> list[Effect]:
    effects: list[Effect] = []
    for payload in payloads:
        seq = int(payload.split("-")[1])
        effects += stream.replayed(ask.generation, seq, payload.encode(), 0.0)
    return effects + stream.replay_ended(ask.generation, 0.0)


def test_what_came_after_the_anchor_follows_its_proof() -> None:
    stream, ask = connected()
    assert stream.last_message is None
    assert stream.live(4, b"a-4", 0.0) == []
    assert answer(stream, ask, "a-2", "a-3", "a-4") == [
        Resumed(),
        Deliver(3, b"a-3"),
        Deliver(4, b"a-4"),
    ]
    assert stream.last_message == Deliver(4, b"a-4")
    assert stream.live(5, b"a-5", 0.0) == [Deliver(5, b"a-5")]


def test_nothing_new_is_proof_enough_and_is_said_once() -> None:
    stream, ask = connected()
    assert answer(stream, ask, "a-2") == [Resumed()]
    assert stream.last_message == Deliver(2, b"a-2")
    stream.disconnected()
    (again,) = stream.connected(1.0)
    assert isinstance(again, Ask)
    assert answer(stream, again, "a-2") == []


@pytest.mark.parametrize(
    ("replayed", "reason"),
    [
        (["b-2", "b-3"], LifeEnd.RESTARTED),
        (["a-3", "a-4"], LifeEnd.HISTORY_GONE),
    ],
)
def test_another_history_ends_the_life_and_is_asked_for_from_its_beginning(
    replayed: Sequence[str], reason: LifeEnd
) -> None:
    stream, ask = connected()
    effects = answer(stream, ask, *replayed)
    assert effects[0] == NewLife(reason)
    assert isinstance(effects[1], Ask)
    assert effects[1].start == 0
    assert len(effects) == 2


def test_an_engine_that_has_not_come_so_far_is_another_one() -> None:
    stream, ask = connected()
    (again,) = answer(stream, ask)
    assert isinstance(again, Ask)
    effects = answer(stream, again)
    assert effects[0] == NewLife(LifeEnd.RESTARTED)


@pytest.mark.parametrize("waits", [True, False])
def test_without_an_answer_the_life_ends_whether_messages_wait_or_not(*, waits: bool) -> None:
    stream, _ = connected()
    if waits:
        assert stream.live(3, b"a-3", 0.0) == []
    (again,) = stream.tick(10.0)
    assert isinstance(again, Ask)
    end, *rest = stream.tick(20.0)
    assert end == NewLife(LifeEnd.GAP_NOT_RECOVERED)
    assert rest == ([Deliver(3, b"a-3")] if waits else [])
