"""Freshness: from the append of one event to its blocks in an answer, while others append too.

Beside the load, at a fifth of the rate that the transport is asked for and through a connection of
its own, one more engine stores a prompt every few milliseconds and asks for it, again and again,
until it is found. Through Kafka the log's own time from producing to consuming is taken in the same
run: a second reader notes when it gets the same records.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import uvloop

from kvatlas_events import LogReader, open_reader
from kvatlas_loadtest.bench.rows import Row
from kvatlas_loadtest.bench.visible.engines import CELL, CHAIN_BLOCKS, LONG_EVENTS, Engine, Shape
from kvatlas_loadtest.bench.visible.logs import TRANSPORTS, Way, left_out, opened
from kvatlas_loadtest.bench.visible.throughput import LONG_TARGETS

NAME = "freshness"
P99_MS_TARGETS = {"grpc": 5.0, "redis": 10.0}
_LOAD = 0.2
_ENGINES = 8
_TICK_S = 0.001
"""A fleet's publishers append each at its own time; the load's own lumps are not to be measured."""
_RECORDS_AN_APPEND = 64
_PROBE = Shape(CHAIN_BLOCKS, 1)
_PROBE_BYTES_MAX = 1_024
"""A probe's record is shorter, one of the load longer: only the former are looked up."""
_PAUSE_S = 0.01
_SECONDS = 6.0
_QUICK_S = 0.2
_QUICK_SHARE = 0.01
_KAFKA_FACTOR = 2.0
_READ_S = 0.5


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Append to visible in FindMatches under 20 % load, p50 and p99, by transport."""
    return uvloop.run(_measure(quick=quick))


async def _measure(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for transport in TRANSPORTS:
        if missing := left_out(NAME, transport):
            rows.append(missing)
            continue
        async with opened(transport) as way:
            rows += await _freshness(transport, way, quick=quick)
    return rows


async def _freshness(transport: str, way: Way, *, quick: bool) -> list[Row]:
    epoch = time.time_ns() // 1_000
    probe = Engine(1, _PROBE, epoch, np.random.default_rng(1))
    blocks_s = _LOAD * LONG_TARGETS[transport] * (_QUICK_SHARE if quick else 1.0)
    records = _load_records(int(blocks_s * (_QUICK_S if quick else _SECONDS)), epoch)
    seen_ms: list[float] = []
    read_ms: list[float] = []
    async with _arrivals(transport, way) as arrivals:
        await _probe(way, probe, arrivals)  # makes connections
        load = asyncio.create_task(_load(way, records, blocks_s))
        try:
            while not load.done():
                seen, read = await _probe(way, probe, arrivals)
                seen_ms.append(seen)
                read_ms += [] if read is None else [read]
                await asyncio.sleep(_PAUSE_S)
            loaded_s = await load
        finally:
            load.cancel()
    appended = len(records) * LONG_EVENTS.blocks_a_record
    return _table(transport, seen_ms, read_ms, int(appended / loaded_s))


async def _probe(
    way: Way, probe: Engine, arrivals: "_Arrivals | None"
) -> tuple[float, float | None]:
    """Ms until one new prompt is found, and until the log's own reader has it, if there is one."""
    (record,) = probe.records(1)
    read = None if arrivals is None else arrivals.expect(record)
    began_s = time.perf_counter()
    appending = asyncio.create_task(way.append([record]))
    await way.wait_for(probe, pause_s=0.0)
    seen_s = time.perf_counter()
    await appending
    read_at_s = None if read is None else await read
    return (seen_s - began_s) * 1e3, None if read_at_s is None else (read_at_s - began_s) * 1e3


class _Arrivals:
    """Notes when a reader of its own gets the records that are expected."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._expected: dict[bytes, asyncio.Future[float]] = {}

    def expect(self, record: bytes) -> "asyncio.Future[float]":
        """Give the time at which `record` is read, on the performance counter."""
        return self._expected.setdefault(record, asyncio.get_running_loop().create_future())

    async def follow(self) -> None:
        """Read for as long as it is let."""
        while True:
            part = await self._reader.read(_READ_S)
            now_s = time.perf_counter()
            for record in part.records:
                if len(record) < _PROBE_BYTES_MAX and (read := self._expected.pop(record, None)):
                    read.set_result(now_s)


@asynccontextmanager
async def _arrivals(transport: str, way: Way) -> AsyncGenerator[_Arrivals | None, None]:
    """Follow the log with a reader of our own where its own time is asked for."""
    reader = open_reader(way.url, cell=CELL) if transport == "kafka" else None
    if reader is None:
        yield None
        return
    arrivals = _Arrivals(reader)
    following = asyncio.create_task(arrivals.follow())
    try:
        yield arrivals
    finally:
        following.cancel()
        await asyncio.wait([following])
        await reader.close()


def _load_records(blocks: int, epoch: int) -> list[bytes]:
    """Made before the measurement: encoding them takes longer than everything that is measured."""
    engines = [
        Engine(worker_id, LONG_EVENTS, epoch, np.random.default_rng(worker_id))
        for worker_id in range(2, 2 + _ENGINES)
    ]
    each = max(1, blocks // (LONG_EVENTS.blocks_a_record * _ENGINES))
    together = zip(*(engine.records(each) for engine in engines), strict=True)
    return [record for records in together for record in records]


async def _load(way: Way, records: Sequence[bytes], blocks_s: float) -> float:
    """Append all records at this rate, each tick what is due; return the seconds that it took."""
    began_s, done = time.perf_counter(), 0
    while done < len(records):
        passed_s = time.perf_counter() - began_s
        due = int(passed_s * blocks_s / LONG_EVENTS.blocks_a_record) + 1
        due = min(due, done + _RECORDS_AN_APPEND, len(records))
        if due > done:
            await way.append(records[done:due], way.other)
        done = due
        await asyncio.sleep(_TICK_S)
    return time.perf_counter() - began_s


def _table(
    transport: str, seen_ms: Sequence[float], read_ms: Sequence[float], load_blocks_s: int
) -> list[Row]:
    settings = {"load_blocks_s": load_blocks_s, "probes": len(seen_ms)}
    p50, p99 = np.percentile(seen_ms, (50, 99)).tolist()
    target = P99_MS_TARGETS.get(transport)
    rows: list[Row] = []
    if read_ms:
        own_p50, own_p99 = np.percentile(read_ms, (50, 99)).tolist()
        target = _KAFKA_FACTOR * own_p99
        rows += [
            Row(NAME, f"{transport}: log's own, p50", own_p50, "ms", settings=settings),
            Row(NAME, f"{transport}: log's own, p99", own_p99, "ms", settings=settings),
        ]
    rows += [
        Row(NAME, f"{transport}: visible, p50", p50, "ms", settings=settings),
        Row(NAME, f"{transport}: visible, p99", p99, "ms", target, settings=settings),
    ]
    return rows
