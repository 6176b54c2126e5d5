"""`kvatlas indexer`: reads a cell's event log and answers `FindMatches`."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

from kvatlas_chassis import (
    AdminServer,
    HostPort,
    StopSignal,
    TaskSet,
    announce_ready,
    run_service,
)
from kvatlas_chassis.metrics import ScrapedMetrics
from kvatlas_indexer.cell import build_cell, grpc_server
from kvatlas_indexer.logs.feeds import open_feeds, register_logs
from kvatlas_indexer.metrics import build_registry, probe_metrics, recovery_metrics
from kvatlas_indexer.readiness import Readiness
from kvatlas_indexer.recovery import Recovery, RecoveryLimits
from kvatlas_indexer.settings import IndexerSettings
from kvatlas_indexer.state.files import StateFiles
from kvatlas_indexer.state.snapshot_loop import snapshot_loop
from kvatlas_indexer.state.start import Start

_TICK_S = 0.1

T = TypeVar("T")


def command(argv: Sequence[str]) -> int:
    """Run `kvatlas indexer`."""
    return run_service(
        serve,
        IndexerSettings,
        service="indexer",
        argv=argv,
        description="Reads a cell's event log and answers which workers hold a prompt's prefix.",
    )


async def serve(settings: IndexerSettings) -> None:
    """Run an indexer until it is told to stop.

    Raises:
        FatalError: an address cannot be used, or the memory to keep is not there.
    """
    stop = StopSignal()
    cell = build_cell(settings)
    register_logs(cell, settings.log)
    files = None if settings.snapshot_dir is None else StateFiles(settings.snapshot_dir)
    start = Start(cell, files, settings.peer, patience_s=settings.peer_patience_s, unix_ms=unix_ms)
    readiness = Readiness(cell, recover_ms=settings.recover_ms, tick_s=_TICK_S, unix_ms=unix_ms)
    registry = build_registry(cell, start, files, unix_ms)

    async with AsyncExitStack() as exits:
        admin = await AdminServer.start(settings.admin, registry, readiness.obstacles)
        exits.push_async_callback(admin.close)

        positions = await unless_stopped(stop, start.run())
        if positions is None:
            return

        listen = await exits.enter_async_context(grpc_server(cell, settings))
        tasks = TaskSet()
        exits.push_async_callback(tasks.close)
        interval_s = settings.snapshot_interval_s
        snapshots = snapshot_loop(cell, files, tasks, interval_s=interval_s, unix_ms=unix_ms)
        await exits.enter_async_context(snapshots)
        feeds = await exits.enter_async_context(
            open_feeds(cell, settings, positions, tasks, unix_ms)
        )
        recovery = Recovery(
            cell,
            RecoveryLimits(
                at_once=settings.recoveries_at_once,
                attempt_s=settings.recovery_attempt_ms / 1000,
            ),
            may_start=lambda: all(feed.obstacle is None for feed in feeds),
            unix_ms=unix_ms,
        )
        ScrapedMetrics(partial(probe_metrics, feeds), registry)
        ScrapedMetrics(partial(recovery_metrics, recovery), registry)
        tasks.start(readiness.run(feeds), name="readiness")
        tasks.start(recovery.run(), name="recovery")
        tasks.start(announce(readiness, settings, listen, admin.address), name="announce")
        await stop.wait(tasks)


async def unless_stopped(stop: StopSignal, work: Coroutine[None, None, T]) -> T | None:
    """Do the work; None: the process is told to stop before it is done."""
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


async def announce(
    readiness: Readiness, settings: IndexerSettings, listen: HostPort, admin: HostPort
) -> None:
    """Print the ready line once the replica answers."""
    await readiness.ready.wait()
    announce_ready(
        listen=listen,
        admin=admin,
        cell=settings.cell,
        model=settings.model,
        block_size=settings.block_size,
    )


def unix_ms() -> int:
    """Return the wall clock in ms."""
    return time.time_ns() // 1_000_000
