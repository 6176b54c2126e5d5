"""Each case of the sequencer's table of answers, one by one."""

from typing import Any

from kvatlas_engines.effects import (
    Deliver,
    DeliverMany,
    Effect,
    Hole,
    RequestReplay,
    ResetReason,
    Resumed,
    StreamReset,
)
from kvatlas_engines.sequencer import FollowerSettings, MessageSequencer

TIMING = FollowerSettings(replay_timeout_s=2.0, idle_s=5.0, attempts_max=3, buffer_messages_max=4)


class Driver:
    """A sequencer and a clock; payloads are `process-seq`."""

    def __init__(self, *, has_replay: bool = True) -> None:
        self.sequencer = MessageSequencer(has_replay=has_replay, settings=TIMING)
        self.now = 0.0
        self.generation = 0

    def _seen(self, effects: list[Effect]) -> list[Any]:
        shown: list[Any] = []
        for effect in effects:
            match effect:
                case Deliver():
                    shown.append(effect.payload.decode())
                case DeliverMany():
                    shown += [payload.decode() for payload in effect.payloads]
                case RequestReplay():
                    self.generation = effect.generation
                    shown.append(("ask", effect.start))
                case Hole() | StreamReset() | Resumed():
                    shown.append(effect)
        return shown

    def connect(self) -> list[Any]:
        return self._seen(self.sequencer.on_connected(self.now))

    def live(self, *messages: str) -> list[Any]:
        seen: list[Any] = []
        for message in messages:
            seq = int(message.split("-")[1])
            seen += self._seen(self.sequencer.on_live(seq, message.encode(), self.now))
        return seen

    def answer(self, *messages: str, end: bool = True) -> list[Any]:
        asked = self.generation
        seen: list[Any] = []
        for message in messages:
            seq = int(message.split("-")[1])
            seen += self._seen(self.sequencer.on_replayed(asked, seq, message.encode(), self.now))
        if end:
            seen += self._seen(self.sequencer.on_replay_end(asked, self.now))
        return seen

    def wait(self, seconds: float) -> list[Any]:
        self.now += seconds
        return self._seen(self.sequencer.tick(self.now))


def started(*messages: str, **kwargs: Any) -> Driver:  # noqa: ANN401 - passed on
    driver = Driver(**kwargs)
    driver.connect()
    if kwargs.get("has_replay", True):
        driver.answer()
    assert driver.live(*messages) == list(messages)
    return driver


def test_what_was_sent_before_we_came_is_replayed_first() -> None:
    driver = Driver()
    assert driver.connect() == [("ask", 0)]
    assert driver.live("a-2") == []
    assert driver.answer("a-0", "a-1", "a-2") == ["a-0", "a-1", "a-2"]
    assert driver.live("a-3") == ["a-3"]


def test_a_history_that_begins_late_is_taken_as_it_is() -> None:
    driver = Driver()
    driver.connect()
    assert driver.answer("a-7", "a-8") == ["a-7", "a-8"]


def test_a_gap_is_filled_before_what_came_after_it() -> None:
    driver = started("a-0", "a-1")
    assert driver.live("a-4") == [("ask", 1)]
    assert driver.live("a-5") == []
    assert driver.answer("a-1", "a-2", "a-3", "a-4") == ["a-2", "a-3", "a-4", "a-5"]


def test_a_number_missing_in_two_answers_was_never_sent() -> None:
    driver = started("a-0", "a-1")
    assert driver.live("a-3") == [("ask", 1)]
    assert driver.answer("a-1", "a-3") == [("ask", 1)]
    assert driver.answer("a-1", "a-3") == [Hole(2, 2), "a-3"]
    assert driver.live("a-4") == ["a-4"]


def test_a_reply_lost_once_is_no_hole() -> None:
    driver = started("a-0")
    driver.live("a-4")
    assert driver.answer("a-0", "a-1", "a-3", "a-4") == ["a-1", ("ask", 1)]
    assert driver.answer("a-1", "a-2", "a-3", "a-4") == ["a-2", "a-3", "a-4"]


def test_history_that_the_engine_no_longer_keeps_is_a_reset() -> None:
    driver = started("a-0", "a-1")
    driver.live("a-9")
    assert driver.answer("a-5", "a-6") == [StreamReset(ResetReason.HISTORY_GONE), ("ask", 0)]
    assert driver.answer("a-5", "a-6", "a-7", "a-8", "a-9") == ["a-5", "a-6", "a-7", "a-8", "a-9"]


def test_the_last_message_sent_again_is_no_restart() -> None:
    driver = started("a-0", "a-1")
    assert driver.live("a-1", "a-1", "a-2") == ["a-2"]
    assert driver.sequencer.counters.duplicates == 2
    assert driver.live("b-2") == [StreamReset(ResetReason.RESTARTED), ("ask", 0)]


def test_a_number_that_went_back_is_a_restart() -> None:
    driver = started("a-0", "a-1", "a-2")
    assert driver.live("b-0") == [StreamReset(ResetReason.RESTARTED), "b-0"]
    assert driver.live("b-1") == ["b-1"]


def test_a_restart_whose_first_message_was_missed_is_replayed_from_0() -> None:
    driver = started("a-0", "a-1", "a-2")
    assert driver.live("b-1") == [StreamReset(ResetReason.RESTARTED), ("ask", 0)]
    assert driver.answer("b-0", "b-1") == ["b-0", "b-1"]


def test_a_restart_that_looks_contiguous_is_told_by_the_payload() -> None:
    driver = started("a-0", "a-1")
    assert driver.connect() == [("ask", 1)]
    assert driver.live("b-2") == []
    assert driver.answer("b-1", "b-2") == [StreamReset(ResetReason.RESTARTED), ("ask", 0)]
    assert driver.answer("b-0", "b-1", "b-2") == ["b-0", "b-1", "b-2"]


def test_a_reconnect_to_the_same_engine_loses_and_repeats_nothing() -> None:
    driver = started("a-0", "a-1")
    assert driver.connect() == [("ask", 1)]
    assert driver.live("a-3") == []
    assert driver.answer("a-1", "a-2", "a-3") == ["a-2", "a-3"]


def test_an_engine_that_restarted_and_said_nothing_yet_is_told_by_empty_answers() -> None:
    driver = started("a-0", "a-1")
    driver.connect()
    assert driver.answer() == [("ask", 1)]
    assert driver.answer() == [StreamReset(ResetReason.RESTARTED), ("ask", 0)]
    assert driver.answer() == []
    assert driver.live("b-0") == ["b-0"]


def test_an_idle_stream_asks_whether_the_last_messages_were_lost() -> None:
    driver = started("a-0")
    assert driver.wait(4.9) == []
    assert driver.wait(0.1) == [("ask", 0)]
    assert driver.answer("a-0", "a-1") == ["a-1"]
    assert driver.wait(5.0) == [("ask", 1)]
    assert driver.answer("a-1") == []


def test_an_engine_without_history_is_not_taken_for_a_restarted_one() -> None:
    driver = started("a-0", "a-1")
    assert driver.wait(5.0) == [("ask", 1)]
    assert driver.answer() == [("ask", 1)]
    assert driver.answer() == []
    assert driver.live("a-2") == ["a-2"]


def test_a_lost_end_is_asked_for_again_from_the_last_good_message() -> None:
    driver = started("a-0")
    driver.live("a-3")
    assert driver.answer("a-0", "a-1", end=False) == ["a-1"]
    assert driver.wait(2.0) == [("ask", 1)]
    assert driver.answer("a-1", "a-2", "a-3") == ["a-2", "a-3"]


def test_an_end_that_never_comes_does_not_hold_messages_back_for_ever() -> None:
    driver = started("a-0")
    driver.live("a-2", "a-3")
    assert driver.answer("a-0", "a-1", end=False) == ["a-1"]
    assert driver.wait(2.0) == [("ask", 1)]
    assert driver.wait(2.0) == [("ask", 1)]
    assert driver.wait(2.0) == ["a-2", "a-3"]


def test_answers_to_an_abandoned_request_are_ignored() -> None:
    driver = started("a-0")
    driver.live("a-2")
    abandoned = driver.generation
    driver.wait(2.0)
    assert driver.sequencer.on_replayed(abandoned, 0, b"a-0", driver.now) == []
    assert driver.sequencer.on_replay_end(abandoned, driver.now) == []
    assert driver.answer("a-0", "a-1", "a-2") == ["a-1", "a-2"]


def test_a_gap_that_no_one_answers_for_is_a_reset() -> None:
    driver = started("a-0")
    assert driver.live("a-2") == [("ask", 0)]
    assert driver.wait(2.0) == [("ask", 0)]
    assert driver.wait(2.0) == [("ask", 0)]
    assert driver.wait(2.0) == [StreamReset(ResetReason.GAP_NOT_RECOVERED), "a-2"]
    assert driver.live("a-3") == ["a-3"]
    assert driver.live("a-5") == [StreamReset(ResetReason.GAP_NOT_RECOVERED), "a-5"]


def test_without_a_replay_endpoint_a_gap_is_a_reset_at_once() -> None:
    driver = started("a-0", has_replay=False)
    assert driver.live("a-2") == [StreamReset(ResetReason.GAP_NOT_RECOVERED), "a-2"]
    assert driver.wait(100.0) == []


def test_without_a_replay_endpoint_a_stream_begins_where_it_is() -> None:
    driver = Driver(has_replay=False)
    assert driver.connect() == []
    assert driver.live("a-7", "a-8") == ["a-7", "a-8"]


def test_what_the_buffer_cannot_hold_is_found_again_as_a_gap() -> None:
    driver = started("a-0")
    driver.live("a-2", "a-3", "a-4", "a-5", "a-6", "a-7")
    assert driver.sequencer.counters.buffer_drops == 2
    assert driver.answer("a-0", "a-1", "a-2") == ["a-1", "a-2", "a-3", "a-4", "a-5"]
    assert driver.live("a-8") == [("ask", 5)]
    assert driver.answer("a-5", "a-6", "a-7", "a-8") == ["a-6", "a-7", "a-8"]


def test_an_engine_that_is_not_there_is_not_asked() -> None:
    driver = started("a-0")
    driver.sequencer.on_disconnected()
    assert driver.wait(100.0) == []


def test_a_gap_that_answers_do_not_fill_is_given_up_rather_than_asked_for_ever() -> None:
    driver = started("a-0", "a-1")
    assert driver.live("a-9") == [("ask", 1)]
    assert driver.answer("a-1") == [("ask", 1)]
    assert driver.answer("a-1") == [("ask", 1)]
    assert driver.answer("a-1") == [StreamReset(ResetReason.GAP_NOT_RECOVERED), "a-9"]


def test_a_replay_endpoint_that_was_dead_is_asked_again_for_the_beginning() -> None:
    driver = Driver()
    driver.connect()
    for _ in range(3):
        driver.wait(2.0)
    assert driver.live("a-1") == [("ask", 0)]
    assert driver.answer("a-0", "a-1") == ["a-0", "a-1"]


def test_after_a_reconnect_that_no_one_vouches_for_what_comes_follows_a_reset() -> None:
    driver = started("a-0", "a-1")
    assert driver.connect() == [("ask", 1)]
    for _ in range(3):
        driver.wait(2.0)
    assert driver.live("b-2") == [("ask", 1)]  # looks contiguous, and may be anyone's
    assert driver.wait(2.0) == [("ask", 1)]
    assert driver.wait(2.0) == [("ask", 1)]
    assert driver.wait(2.0) == [StreamReset(ResetReason.GAP_NOT_RECOVERED), "b-2"]
    assert driver.live("b-3") == ["b-3"]
