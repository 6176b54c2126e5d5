"""Opens every log of the settings, each with its reader and its probe, and feeds the cell from it."""

import logging
import random
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from kvatlas_chassis import TaskSet
from kvatlas_events import LogPosition, LogReader, open_prober, open_reader
from kvatlas_events.backoff import Backoff
from kvatlas_indexer.logs.log_feed import Feed, LogFeed, PushedFeed
from kvatlas_indexer.logs.probe import Probe, interval_s
from kvatlas_indexer.settings import IndexerSettings
from kvatlas_native import Cell

log = logging.getLogger(__name__)


def register_logs(cell: Cell, urls: Sequence[str]) -> None:
    """Name the logs to the cell, so that a state restored into it can set each log's time."""
    for number, url in enumerate(urls):
        cell.set_log_status(transport_name(url, number), alive=False, records=0, lag_ms=0)


@asynccontextmanager
async def open_feeds(
    cell: Cell,
    settings: IndexerSettings,
    positions: Mapping[str, LogPosition],
    tasks: TaskSet,
    unix_ms: Callable[[], int],
) -> AsyncGenerator[list[Feed], None]:
    """Read every log into the cell, from its position in `positions` if it has one.

    At the exit the tasks have ended and all connections are closed.
    """
    urls = {transport_name(url, number): url for number, url in enumerate(settings.log)}
    # All are opened before the first is read: a URL that cannot be used is an error at the start.
    readers = {
        transport: _open_at(url, settings.cell, positions.get(transport))
        for transport, url in urls.items()
    }
    feeds: list[Feed] = []
    probes: list[Probe] = []
    for transport, reader in readers.items():
        cell.set_log_status(transport, alive=reader is None, records=0, lag_ms=0)
        if reader is None:
            feeds.append(PushedFeed())
            continue
        backoff = Backoff(0.05, 2.0, random.Random())
        probe = _build_probe(urls[transport], settings)
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
        for reader in readers.values():
            if reader is not None:
                await reader.close()
        for probe in probes:
            await probe.close()


def transport_name(url: str, number: int) -> str:
    """Name a log in metrics and leases: its scheme, and its number if it is not the first."""
    scheme = url.partition(":")[0].partition("+")[0].replace("rediss", "redis")
    return scheme if number == 0 or scheme == "grpc" else f"{scheme}_{number}"


def _build_probe(url: str, settings: IndexerSettings) -> Probe | None:
    """Make the probe of a log; None: there is no log, or the settings want no probes."""
    prober = open_prober(url, cell=settings.cell) if settings.probe_ms else None
    if prober is None:
        return None
    return Probe(
        prober,
        name=uuid.uuid4().hex,
        interval_s=interval_s(settings.probe_ms, settings.lease_ms),
        monotonic_s=time.monotonic,
    )


def _open_at(url: str, cell: str, position: LogPosition | None) -> LogReader | None:
    """Open a log after the applied entries. If the position does not fit the log, read it whole."""
    try:
        return open_reader(url, cell=cell, position=position)
    except ValueError as error:  # the URL itself was checked with the settings
        log.warning("the stored position in a log cannot be used, so it is read whole: %s", error)
        return open_reader(url, cell=cell)
