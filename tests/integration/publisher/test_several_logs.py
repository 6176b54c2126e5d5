"""A publisher with two logs, one of which does not answer."""

import asyncio

from kvatlas_events import Shutdown, ShutdownReason, WorkerKey
from tests.integration.publisher.conftest import WireEngine
from tests.integration.publisher.test_worker_publisher import (
    KeepingLog,
    beats,
    running,
    spec_of,
    stored,
)


async def test_a_log_that_is_away_costs_the_others_no_time_when_the_rank_is_learned(
    wire_engine: WireEngine,
) -> None:
    here, away = KeepingLog(), KeepingLog()
    away.stalled = True
    async with running(spec_of(wire_engine), here, away, engine_gone_s=60.0):
        await wire_engine.subscribed()
        await wire_engine.until(lambda: bool(beats(here)))
        wire_engine.send(stored(1), dp_rank=3)
        async with asyncio.timeout(10.0):
            await wire_engine.until(lambda: here.batches[-1].header.worker == WorkerKey(7, 3))
        away.stalled = False
    assert away.batches[-1].header.worker == WorkerKey(7, 3)
    assert away.published[-1] == Shutdown(ShutdownReason.PUBLISHER_LEAVING)
