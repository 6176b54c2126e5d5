"""`kvatlas indexer`: a cell's event log in, `FindMatches` out."""

import asyncio
import logging
import os
import random
import socket
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

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
from kvatlas_events import LogPosition, LogReader, open_prober, open_reader
from kvatlas_events.backoff import Backoff
from kvatlas_hashing import CONTRACT
from kvatlas_indexer.feed import Feed, LogFeed, PushedFeed
from kvatlas_indexer.keeping import keeping
from kvatlas_indexer.metrics import (
    CellCollector,
    LagCollector,
    ProbeCollector,
    RecoveryCollector,
    ReplicaCollector,
)
from kvatlas_indexer.probe import Probe, interval_s
from kvatlas_indexer.readiness import Readiness
from kvatlas_indexer.recovery import Recovery, RecoveryLimits
from kvatlas_indexer.settings import IndexerSettings
from kvatlas_indexer.snapshots import StateFiles
from kvatlas_indexer.start import Start
from kvatlas_native import Cell, CellServer

# Of the grace period, for running calls; the rest is for everything else to end.
_GRACE_FOR_CALLS = 0.7
_TICK_S = 0.1

log = logging.getLogger(__name__)

T = TypeVar("T")


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
    files = None if settings.snapshot_dir is None else StateFiles(settings.snapshot_dir)
    registry = CollectorRegistry()
    CellCollector(cell, registry)
    LagCollector(cell, registry, unix_ms=unix_ms)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    start = build_start(cell, files, settings)
    ReplicaCollector(start, files, registry)
    life = Life()
    async with administering(settings, registry, life.obstacles) as admin:
        positions = await unless_stopped(stop, start.run())
        if positions is not None:
            await follow(
                cell, settings, Kept(files, positions), Around(stop, registry, life, admin)
            )


async def follow(cell: Cell, settings: IndexerSettings, kept: "Kept", around: "Around") -> None:
    """Serve and read, from the state that the replica has started with, until it is to stop."""
    interval_s = settings.snapshot_interval_s
    async with (
        serving(cell, settings) as listen,
        background() as tasks,
        keeping(cell, kept.files, tasks, interval_s=interval_s, unix_ms=unix_ms),
        reading(cell, settings, tasks, kept.positions) as feeds,
    ):
        ProbeCollector(feeds, around.registry)
        readiness = Readiness(
            cell, feeds, recover_ms=settings.recover_ms, tick_s=_TICK_S, unix_ms=unix_ms
        )
        around.life.readiness = readiness
        tasks.start(readiness.run(), name="readiness")
        recovery = build_recovery(cell, settings, feeds)
        RecoveryCollector(recovery, around.registry)
        tasks.start(recovery.run(), name="recovery")
        tasks.start(announce(readiness, settings, listen, around.admin), name="announce")
        await around.stop.wait(tasks)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a replica starts with and keeps for its next start."""

    files: StateFiles | None
    positions: Mapping[str, LogPosition]


@dataclass(frozen=True, slots=True)
class Around:
    """What outlives the serving: the process's own."""

    stop: StopSignal
    registry: CollectorRegistry
    life: "Life"
    admin: HostPort


class Life:
    """What /readyz says: the start at first, then what readiness says."""

    def __init__(self) -> None:
        self.readiness: Readiness | None = None

    def obstacles(self) -> list[str]:
        """Say what keeps the replica from answering; nothing once it is ready."""
        if self.readiness is None:
            return ["reading the state to start from"]
        return self.readiness.obstacles()


async def unless_stopped(stop: StopSignal, work: Coroutine[None, None, T]) -> T | None:
    """Do the work, or give it up and return None when the process is to stop before."""
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


@asynccontextmanager
async def administering(
    settings: IndexerSettings, registry: CollectorRegistry, obstacles: Callable[[], list[str]]
) -> AsyncGenerator[HostPort, None]:
    """Answer the admin port, from before the start to the very end."""
    admin = await AdminServer.start(settings.admin, registry, obstacles)
    try:
        yield admin.address
    finally:
        await admin.close()


def build_cell(settings: IndexerSettings) -> Cell:
    """Make the cell's native state, empty and not ready.

    Raises:
        FatalError: the system has not the memory that is to be kept.
    """
    cell = Cell(
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
    if not cell.keep_memory(settings.memory_bytes_kept):
        raise FatalError(
            f"memory_bytes_kept: the system does not give {settings.memory_bytes_kept} bytes"
        )
    return cell


def build_start(cell: Cell, files: StateFiles | None, settings: IndexerSettings) -> Start:
    """Make what fills the cell before the first record; the cell knows its logs from then on."""
    for number, url in enumerate(settings.log):
        cell.set_log_status(transport_name(url, number), alive=False, records=0, lag_ms=0)
    return Start(cell, files, settings.peer, patience_s=settings.peer_patience_s, unix_ms=unix_ms)


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
    cell: Cell, settings: IndexerSettings, tasks: TaskSet, positions: Mapping[str, LogPosition]
) -> AsyncGenerator[list[Feed], None]:
    """Read every log of the settings into the cell, each from its position if it has one."""
    feeds: list[Feed] = []
    probes: list[Probe] = []
    urls = {transport_name(url, number): url for number, url in enumerate(settings.log)}
    readers = [
        (transport, open_at(url, settings.cell, positions.get(transport)))
        for transport, url in urls.items()
    ]
    for transport, reader in readers:
        cell.set_log_status(transport, alive=reader is None, records=0, lag_ms=0)
        if reader is None:
            feeds.append(PushedFeed())
            continue
        backoff = Backoff(0.05, 2.0, random.Random())
        probe = build_probe(urls[transport], settings)
        feed = LogFeed(cell, reader, transport, backoff=backoff, unix_ms=unix_ms, probe=probe)
        tasks.start(feed.run(), name=f"log {reader.name}")
        if probe is not None:
            tasks.start(probe.run(), name=f"probe of {reader.name}")
            probes.append(probe)
        feeds.append(feed)
    try:
        yield feeds
    finally:
        await tasks.close()
        for _, reader in readers:
            if reader is not None:
                await reader.close()
        for probe in probes:
            await probe.close()


def build_probe(url: str, settings: IndexerSettings) -> Probe | None:
    """Make what shows that a log takes what is appended, where there is a log and it is wanted."""
    prober = open_prober(url, cell=settings.cell) if settings.probe_ms else None
    if prober is None:
        return None
    return Probe(
        prober,
        name=uuid.uuid4().hex,
        interval_s=interval_s(settings.probe_ms, settings.lease_ms),
        monotonic_s=time.monotonic,
    )


def open_at(url: str, cell: str, position: LogPosition | None) -> LogReader | None:
    """Open a log behind what is applied already, or, if that place is none of its kind, whole."""
    try:
        return open_reader(url, cell=cell, position=position)
    except ValueError as error:  # the settings have seen to the URL
        log.warning("the kept place in a log cannot be used, it is read whole: %s", error)
        return open_reader(url, cell=cell)


def transport_name(url: str, number: int) -> str:
    """Name a log in metrics and leases: its scheme, and its place if it is not the first."""
    scheme = url.partition(":")[0].partition("+")[0].replace("rediss", "redis")
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
