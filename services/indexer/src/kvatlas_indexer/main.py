"""`kvatlas indexer`: a cell's event log in, `FindMatches` out."""

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from kvatlas_chassis import (
    AdminServer,
    FatalError,
    HostPort,
    StopSignal,
    TaskSet,
    announce_ready,
    run_service,
)
from kvatlas_events import open_reader
from kvatlas_events.backoff import Backoff
from kvatlas_hashing import CONTRACT
from kvatlas_indexer.feed import Feed, LogFeed, PushedFeed
from kvatlas_indexer.metrics import CellCollector, RecoveryCollector
from kvatlas_indexer.readiness import Readiness
from kvatlas_indexer.recovery import Recovery, RecoveryLimits
from kvatlas_indexer.settings import IndexerSettings
from kvatlas_native import Cell, CellServer

# Of the grace period, for running calls; the rest is for everything else to end.
_GRACE_FOR_CALLS = 0.7
_TICK_S = 0.1


def command(argv: Sequence[str]) -> int:
    """Run `kvatlas indexer`."""
    return run_service(
        serve,
        IndexerSettings,
        service="indexer",
        argv=argv,
        description="Follows a cell's event log and answers which workers hold a prompt's prefix.",
    )


async def serve(settings: IndexerSettings) -> None:
    """Run an indexer until it is told to stop.

    Raises:
        FatalError: an address cannot be used.
    """
    stop = StopSignal()
    cell = build_cell(settings)
    registry = CollectorRegistry()
    CellCollector(cell, registry)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    async with (
        serving(cell, settings) as listen,
        background() as tasks,
        reading(cell, settings, tasks) as feeds,
    ):
        readiness = Readiness(
            cell, feeds, recover_ms=settings.recover_ms, tick_s=_TICK_S, unix_ms=unix_ms
        )
        tasks.start(readiness.run(), name="readiness")
        recovery = build_recovery(cell, settings, feeds)
        RecoveryCollector(recovery, registry)
        tasks.start(recovery.run(), name="recovery")
        admin = await AdminServer.start(settings.admin, registry, readiness.obstacles)
        try:
            tasks.start(announce(readiness, settings, listen, admin.address), name="announce")
            await stop.wait(tasks)
        finally:
            await admin.close()


def build_cell(settings: IndexerSettings) -> Cell:
    """Make the cell's native state, empty and not ready."""
    return Cell(
        cell=settings.cell,
        model=settings.model,
        block_size=settings.block_size,
        hash_contract=CONTRACT,
        replica_id=settings.replica_id or f"{socket.gethostname()}-{os.getpid()}",
        version=version("kvatlas-indexer"),
        lease_ms=settings.lease_ms,
        hold_back_batches_max=settings.hold_back_batches_max,
        hold_back_ms=settings.hold_back_ms,
        recover_ms=settings.recover_ms,
        memory_bytes_max=settings.memory_bytes_max,
    )


def build_recovery(cell: Cell, settings: IndexerSettings, feeds: Sequence[Feed]) -> Recovery:
    """Make what asks publishers for lost records, once the logs have been read to their heads."""
    limits = RecoveryLimits(
        at_once=settings.recoveries_at_once, attempt_s=settings.recovery_attempt_ms / 1000
    )
    return Recovery(
        cell,
        limits,
        may_start=lambda: all(feed.obstacle is None for feed in feeds),
        unix_ms=unix_ms,
    )


@asynccontextmanager
async def serving(cell: Cell, settings: IndexerSettings) -> AsyncGenerator[HostPort, None]:
    """Serve gRPC on native threads; running calls get most of the grace period at the end."""
    listen = settings.listen
    try:
        server = CellServer(cell, listen.host, listen.port, threads=settings.threads)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FatalError(f"cannot listen on --listen {listen}: {reason}") from None
    try:
        yield HostPort(*server.address)
    finally:
        await asyncio.to_thread(server.stop, settings.grace_s * _GRACE_FOR_CALLS)


@asynccontextmanager
async def background() -> AsyncGenerator[TaskSet, None]:
    """Keep the service's tasks; all have ended at the exit."""
    tasks = TaskSet()
    try:
        yield tasks
    finally:
        await tasks.close()


@asynccontextmanager
async def reading(
    cell: Cell, settings: IndexerSettings, tasks: TaskSet
) -> AsyncGenerator[list[Feed], None]:
    """Read every log of the settings into the cell."""
    feeds: list[Feed] = []
    readers = [(url, open_reader(url, cell=settings.cell)) for url in settings.log]
    for number, (url, reader) in enumerate(readers):
        transport = transport_name(url, number)
        cell.set_log_status(transport, alive=reader is None, records=0, lag_ms=0)
        if reader is None:
            feeds.append(PushedFeed())
            continue
        backoff = Backoff(0.05, 2.0, random.Random())
        feed = LogFeed(cell, reader, transport, backoff=backoff, unix_ms=unix_ms)
        tasks.start(feed.run(), name=f"log {reader.name}")
        feeds.append(feed)
    try:
        yield feeds
    finally:
        await tasks.close()
        for _, reader in readers:
            if reader is not None:
                await reader.close()


def transport_name(url: str, number: int) -> str:
    """Name a log in metrics and leases: its scheme, and its place if it is not the first."""
    scheme = url.partition(":")[0].replace("rediss", "redis")
    return scheme if number == 0 or scheme == "grpc" else f"{scheme}_{number}"


def unix_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


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
