"""The follower against real sockets: loss, restart, both reply shapes, either side binding."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import zmq

from kvatlas_engines.effects import Deliver, DeliverMany, Effect, Hole, ResetReason, StreamReset
from kvatlas_engines.endpoint import Endpoint
from kvatlas_engines.follower import Follower
from kvatlas_engines.sequencer import FollowerSettings

TIMING = FollowerSettings(replay_timeout_s=0.3, idle_s=0.5)
Engine = Any  # the fixture's class; tests are no packages


class Log:
    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.malformed: list[tuple[int, str]] = []

    def __call__(self, effects: Sequence[Effect]) -> None:
        self.effects.extend(effects)

    @property
    def seqs(self) -> list[int]:
        runs = [
            range(effect.seq, effect.seq + len(effect.payloads))
            if isinstance(effect, DeliverMany)
            else [effect.seq]
            for effect in self.effects
            if isinstance(effect, (Deliver, DeliverMany))
        ]
        return [seq for run in runs for seq in run]

    def has(self, *seqs: int) -> Callable[[], bool]:
        return lambda: self.seqs == list(seqs)


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - it is a socket's state that is waited for
        await asyncio.sleep(0.002)


@asynccontextmanager
async def following(events: str, replay: str | None, log: Log) -> AsyncGenerator[Follower]:
    follower = Follower(
        Endpoint.parse(events),
        None if replay is None else Endpoint.parse(replay),
        handle=log,
        on_malformed=lambda messages, error: log.malformed.append((messages, error)),
        settings=TIMING,
    )
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_history_comes_first_then_what_is_live(wire_engine: Engine) -> None:
    log = Log()
    wire_engine.send("a")
    wire_engine.send("b")
    async with following(wire_engine.events, wire_engine.replay, log):
        await wire_engine.until(log.has(0, 1))
        wire_engine.send("c")
        await wire_engine.until(log.has(0, 1, 2))


async def test_a_lost_message_is_replayed_and_an_unsent_one_is_a_hole(wire_engine: Engine) -> None:
    log = Log()
    async with following(wire_engine.events, wire_engine.replay, log):
        await wire_engine.subscribed()
        wire_engine.send("a")
        await wire_engine.until(log.has(0))
        wire_engine.send("b", lost=True)
        wire_engine.fail_to_encode()
        wire_engine.send("d")
        await wire_engine.until(log.has(0, 1, 3))
    assert [effect for effect in log.effects if isinstance(effect, Hole)] == [Hole(2, 2)]


async def test_older_engines_reply_without_a_topic(old_wire_engine: Engine) -> None:
    log = Log()
    old_wire_engine.send("a")
    async with following(old_wire_engine.events, old_wire_engine.replay, log):
        await old_wire_engine.until(log.has(0))


async def test_the_last_message_is_missed_by_no_one(wire_engine: Engine) -> None:
    log = Log()
    async with following(wire_engine.events, wire_engine.replay, log):
        await wire_engine.subscribed()
        wire_engine.send("a")
        wire_engine.send("b", lost=True)
        await wire_engine.until(log.has(0, 1))


async def test_a_lost_end_is_asked_for_again(wire_engine: Engine) -> None:
    log = Log()
    wire_engine.loses_end = 1
    wire_engine.send("a")
    async with following(wire_engine.events, wire_engine.replay, log) as follower:
        await wire_engine.until(log.has(0))
        await wire_engine.until(lambda: follower.sequencer.counters.replay_timeouts == 1)
        await wire_engine.until(lambda: len(wire_engine.questions) > 1)
    assert log.seqs == [0]


async def test_an_engine_that_comes_back_past_our_number_is_a_new_life(wire_engine: Engine) -> None:
    log = Log()
    async with following(wire_engine.events, wire_engine.replay, log):
        await wire_engine.subscribed()
        wire_engine.send("a")
        wire_engine.send("b")
        await wire_engine.until(log.has(0, 1))
        wire_engine.restart()
        for name in ("x", "y", "z"):
            wire_engine.send(name)  # before the subscriber is back
        await wire_engine.until(log.has(0, 1, 0, 1, 2))
    assert [e for e in log.effects if isinstance(e, StreamReset)] == [
        StreamReset(ResetReason.RESTARTED)
    ]


async def test_the_follower_binds_where_the_engine_connects() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = Log()
    context = zmq.Context()
    async with following(f"tcp://*:{port}", None, log):
        publisher = context.socket(zmq.XPUB)
        publisher.connect(f"tcp://127.0.0.1:{port}")
        await until(lambda: bool(publisher.poll(0)))
        publisher.send_multipart([b"", (0).to_bytes(8, "big"), b"x"])
        await until(log.has(0))
    context.destroy(linger=0)


async def test_malformed_messages_are_reported_and_passed_over(wire_engine: Engine) -> None:
    log = Log()
    async with following(wire_engine.events, wire_engine.replay, log):
        await wire_engine.subscribed()
        for seq in range(3):
            wire_engine._pub.send_multipart([b"topic", b"short", b"x"])
            wire_engine.send("a")
            await wire_engine.until(log.has(*range(seq + 1)))
    assert log.malformed == [(1, "a sequence number of 5 bytes; 8 are expected")] * 3


async def test_a_restart_forgets_what_was_delivered_and_begins_with_all_that_is_kept(
    wire_engine: Engine,
) -> None:
    log = Log()
    async with following(wire_engine.events, wire_engine.replay, log) as follower:
        await wire_engine.subscribed()
        wire_engine.send("a")
        wire_engine.send("b")
        await wire_engine.until(log.has(0, 1))
        follower.restart()
        assert (follower.connected, follower.sequencer.last_seq) == (False, None)
        wire_engine.send("c")
        await wire_engine.until(log.has(0, 1, 0, 1, 2))
        assert follower.connected


async def test_a_follower_that_binds_can_restart() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = zmq.Context()
    async with following(f"tcp://*:{port}", None, Log()) as follower:
        engine = context.socket(zmq.XPUB)
        engine.connect(f"tcp://127.0.0.1:{port}")
        await until(lambda: follower.connected)
        follower.restart()
        assert not follower.connected
        await until(lambda: follower.connected)
    context.destroy(linger=0)
