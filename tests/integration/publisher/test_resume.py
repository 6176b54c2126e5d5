"""A worker's publisher that resumes from an earlier one's checkpoint, with a real ZMQ engine."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvatlas_events import Store
from kvatlas_publisher.mirror import Mirror
from kvatlas_publisher.state.state_dir import StateDir
from tests.integration.publisher.conftest import WireEngine
from tests.integration.publisher.test_worker_publisher import KeepingLog, running, spec_of, stored


@pytest.fixture
def forgetful_engine() -> Iterator[WireEngine]:
    """Keeps so little that its replay alone cannot tell what it holds."""
    engine = WireEngine(kept=2)
    yield engine
    engine.close()


async def remembered(engine: WireEngine, state: StateDir) -> KeepingLog:
    """Follow the engine for two messages, of three blocks, and leave."""
    log = KeepingLog()
    async with running(spec_of(engine), log, state=state):
        await engine.subscribed()
        engine.send(stored(1, 2))
        engine.send(stored(3, first_token=4, parent=2))
        await engine.until(lambda: len(hashes(log)) == 3)
    return log


def hashes(log: KeepingLog) -> list[int]:
    """Hashes of all blocks in store events."""
    events = [event for batch in log.batches for event in batch.events]
    return [h for e in events if isinstance(e, Store) for h in e.sequence_hashes.tolist()]


async def test_history_that_the_engine_no_longer_replays_outlives_a_restart(
    forgetful_engine: WireEngine, tmp_path: Path
) -> None:
    engine, state = forgetful_engine, StateDir.open(tmp_path)
    before = await remembered(engine, state)
    engine.send(stored(4, first_token=6, parent=3))  # nobody hears it
    log = KeepingLog()
    async with running(spec_of(engine), log, state=state, engine_gone_s=10.0) as publisher:
        await engine.until(lambda: bool(log.batches) and bool(log.batches[-1].heartbeat))
        assert publisher.epoch is not None
        assert publisher.epoch.mirror.held_blocks == 4
        engine.send(stored(5, first_token=8, parent=4))
        await engine.until(
            lambda: publisher.epoch is not None and publisher.epoch.last_event_id >= 3
        )
        await engine.until(lambda: bool(log.batches[-1].heartbeat))
    assert {b.header.epoch for b in log.batches}.isdisjoint(b.header.epoch for b in before.batches)
    first = next(batch for batch in log.batches if not batch.heartbeat)
    assert first.snapshot is not None
    as_of = first.snapshot.as_of_event_id
    assert as_of >= 1
    numbered = [batch for batch in log.batches if batch.events]
    assert numbered[0].first_event_id == as_of + 1
    told = [*first.snapshot.sequence_hashes.tolist(), *hashes(log)]
    assert len(set(told)) == len(told) == 5
    assert set(told) > set(hashes(before))
    assert publisher.context.counters.checkpoints_resumed == 1


@pytest.mark.parametrize("answers", [True, False])
async def test_without_proof_the_checkpoint_is_dropped_and_nothing_of_it_is_published(
    wire_engine: WireEngine, tmp_path: Path, *, answers: bool
) -> None:
    engine, state = wire_engine, StateDir.open(tmp_path)
    await remembered(engine, state)
    if answers:
        engine.restart()
        engine.send(stored(9, first_token=90))
    log = KeepingLog()
    async with running(spec_of(engine), log, state=state) as publisher:
        if answers:
            await engine.until(lambda: len(hashes(log)) == 1)
        while not any(batch.heartbeat for batch in log.batches):
            if answers:
                engine.answer_replays()
            await asyncio.sleep(0.002)
        assert publisher.epoch is not None
        assert publisher.epoch.mirror.held_blocks == int(answers)
        assert publisher.context.counters.checkpoints_dropped == 1
        assert publisher.context.counters.checkpoints_resumed == 0
    assert all(batch.snapshot is None for batch in log.batches)


class SlowExport:
    """Holds every export of a mirror up, in whichever thread it runs, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = asyncio.Event(), threading.Event()
        self.loop = asyncio.get_running_loop()
        real = Mirror.export_state

        def export_state(mirror: Mirror) -> NDArray[np.uint8]:
            self.loop.call_soon_threadsafe(self.begun.set)
            assert self.go.wait(30)
            return real(mirror)

        monkeypatch.setattr(Mirror, "export_state", export_state)


async def test_while_a_checkpoint_is_made_heartbeats_go_on_and_messages_wait(
    wire_engine: WireEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, log = wire_engine, KeepingLog()
    state, slow = StateDir.open(tmp_path), SlowExport(monkeypatch)
    async with running(spec_of(engine), log, state=state, checkpoint_s=0.001) as publisher:
        await engine.subscribed()
        engine.send(stored(1, 2))
        await engine.until(slow.begun.is_set)
        before = len(log.batches)
        engine.send(stored(3, first_token=4, parent=2))
        counters = publisher.follower.sequencer.counters
        await engine.until(lambda: counters.messages == 2)
        await engine.until(lambda: sum(b.heartbeat is not None for b in log.batches[before:]) >= 2)
        assert len(hashes(log)) == 2
        assert publisher.context.counters.checkpoints == 0
        slow.go.set()
        await engine.until(lambda: len(hashes(log)) == 3)
        await engine.until(lambda: publisher.context.counters.checkpoints >= 1)


async def test_a_publisher_that_stops_while_a_checkpoint_is_made_loses_no_message(
    wire_engine: WireEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, log = wire_engine, KeepingLog()
    state, slow = StateDir.open(tmp_path), SlowExport(monkeypatch)
    async with running(spec_of(engine), log, state=state, checkpoint_s=0.001) as publisher:
        await engine.subscribed()
        engine.send(stored(1, 2))
        await engine.until(slow.begun.is_set)
        engine.send(stored(3, first_token=4, parent=2))
        counters = publisher.follower.sequencer.counters
        await engine.until(lambda: counters.messages == 2)
        asyncio.get_running_loop().call_soon(slow.go.set)
    assert len(hashes(log)) == 3
    async with running(spec_of(engine), KeepingLog(), state=state, engine_gone_s=10.0) as again:
        await engine.until(lambda: again.context.counters.checkpoints_resumed == 1)
        assert again.epoch is not None
        assert again.epoch.mirror.held_blocks == 3
