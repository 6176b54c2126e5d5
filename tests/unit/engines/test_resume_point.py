"""A stream is resumed only if the engine shows the last message that another process delivered."""

from collections.abc import Sequence

import pytest

from kvatlas_engines.effects import (
    Deliver,
    Effect,
    RequestReplay,
    ResetReason,
    Resumed,
    ResumePoint,
    StreamReset,
    payload_digest,
)
from kvatlas_engines.sequencer import FollowerSettings, MessageSequencer

TIMING = FollowerSettings(attempts_max=2)
POINT = ResumePoint(2, payload_digest(b"a-2"))


def connected() -> tuple[MessageSequencer, RequestReplay]:
    sequencer = MessageSequencer(has_replay=True, settings=TIMING, resume_point=POINT)
    (ask,) = sequencer.on_connected(0.0)
    assert isinstance(ask, RequestReplay)
    assert ask.start == POINT.seq
    return sequencer, ask


def answer(sequencer: MessageSequencer, ask: RequestReplay, *payloads: str) -> list[Effect]:
    effects: list[Effect] = []
    for payload in payloads:
        seq = int(payload.split("-")[1])
        effects += sequencer.on_replayed(ask.generation, seq, payload.encode(), 0.0)
    return effects + sequencer.on_replay_end(ask.generation, 0.0)


def test_what_came_after_the_resume_point_follows_its_proof() -> None:
    sequencer, ask = connected()
    assert sequencer.last_message is None
    assert sequencer.on_live(4, b"a-4", 0.0) == []
    assert answer(sequencer, ask, "a-2", "a-3", "a-4") == [
        Resumed(),
        Deliver(3, b"a-3"),
        Deliver(4, b"a-4"),
    ]
    assert sequencer.last_message == Deliver(4, b"a-4")
    assert sequencer.on_live(5, b"a-5", 0.0) == [Deliver(5, b"a-5")]


def test_nothing_new_is_proof_enough_and_is_reported_once() -> None:
    sequencer, ask = connected()
    assert answer(sequencer, ask, "a-2") == [Resumed()]
    assert sequencer.last_message == Deliver(2, b"a-2")
    sequencer.on_disconnected()
    (again,) = sequencer.on_connected(1.0)
    assert isinstance(again, RequestReplay)
    assert answer(sequencer, again, "a-2") == []


@pytest.mark.parametrize(
    ("replayed", "reason"),
    [
        (["b-2", "b-3"], ResetReason.RESTARTED),
        (["a-3", "a-4"], ResetReason.HISTORY_GONE),
    ],
)
def test_another_history_resets_the_stream_and_is_requested_from_its_beginning(
    replayed: Sequence[str], reason: ResetReason
) -> None:
    sequencer, ask = connected()
    effects = answer(sequencer, ask, *replayed)
    assert effects[0] == StreamReset(reason)
    assert isinstance(effects[1], RequestReplay)
    assert effects[1].start == 0
    assert len(effects) == 2


def test_an_engine_that_has_not_come_so_far_is_another_one() -> None:
    sequencer, ask = connected()
    (again,) = answer(sequencer, ask)
    assert isinstance(again, RequestReplay)
    effects = answer(sequencer, again)
    assert effects[0] == StreamReset(ResetReason.RESTARTED)


@pytest.mark.parametrize("waits", [True, False])
def test_without_an_answer_the_stream_is_reset_whether_messages_wait_or_not(*, waits: bool) -> None:
    sequencer, _ = connected()
    if waits:
        assert sequencer.on_live(3, b"a-3", 0.0) == []
    (again,) = sequencer.tick(10.0)
    assert isinstance(again, RequestReplay)
    end, *rest = sequencer.tick(20.0)
    assert end == StreamReset(ResetReason.GAP_NOT_RECOVERED)
    assert rest == ([Deliver(3, b"a-3")] if waits else [])
