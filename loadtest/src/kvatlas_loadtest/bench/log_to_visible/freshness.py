"""Freshness: time from the append of one event to its blocks in an answer, under load.

The load is a fifth of the transport's target rate, through a connection of its own. One more engine
stores a prompt every few milliseconds, and FindMatches is polled until it finds the prompt. For
Kafka a second reader measures the log's own latency in the same run, with the same records.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import uvloop

from kvatlas_events import LogReader, open_reader
from kvatlas_loadtest.bench.cell import CELL
from kvatlas_loadtest.bench.log_to_visible.engine_records import (
    CHAIN_BLOCKS,
    LONG_EVENTS,
    Engine,
    Shape,
)
from kvatlas_loadtest.bench.log_to_visible.throughput import LONG_TARGETS
from kvatlas_loadtest.bench.log_to_visible.transports import (
    TRANSPORTS,
    LogPipeline,
    open_pipeline,
    skipped_row,
)
from kvatlas_loadtest.bench.rows import Row

NAME = "freshness"
P99_MS_TARGETS = {"grpc": 5.0, "redis": 10.0}
_LOAD = 0.2
_ENGINES = 8
_TICK_S = 0.001
"""Interval of the load's appends. It is short, because publishers of a fleet do not append in step."""
_RECORDS_AN_APPEND = 64
_PROBE = Shape(CHAIN_BLOCKS, 1)
_PROBE_BYTES_MAX = 1_024
"""Length that tells a probe's record from a longer one of the load."""
_PAUSE_S = 0.01
_SECONDS = 6.0
_QUICK_S = 0.2
_QUICK_SHARE = 0.01
_KAFKA_FACTOR = 2.0
_READ_S = 0.5


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Freshness: from append to FindMatches under 20 % load, p50 and p99, by transport."""
    return uvloop.run(_measure(quick=quick))


async def _measure(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for transport in TRANSPORTS:
        if missing := skipped_row(NAME, transport):
            rows.append(missing)
            continue
        async with open_pipeline(transport) as pipeline:
            rows += await _freshness(transport, pipeline, quick=quick)
    return rows


async def _freshness(transport: str, pipeline: LogPipeline, *, quick: bool) -> list[Row]:
    epoch = time.time_ns() // 1_000
    probe = Engine(1, _PROBE, epoch, np.random.default_rng(1))
    blocks_s = _LOAD * LONG_TARGETS[transport] * (_QUICK_SHARE if quick else 1.0)
    records = _load_records(int(blocks_s * (_QUICK_S if quick else _SECONDS)), epoch)
    seen_ms: list[float] = []
    read_ms: list[float] = []
    async with _arrivals(transport, pipeline) as arrivals:
        await _probe(pipeline, probe, arrivals)  # makes connections
        load = asyncio.create_task(_load(pipeline, records, blocks_s))
        try:
            while not load.done():
                seen, read = await _probe(pipeline, probe, arrivals)
                seen_ms.append(seen)
                read_ms += [] if read is None else [read]
                await asyncio.sleep(_PAUSE_S)
            loaded_s = await load
        finally:
            load.cancel()
    appended = len(records) * LONG_EVENTS.blocks_a_record
    return _table(transport, seen_ms, read_ms, int(appended / loaded_s))


async def _probe(
    pipeline: LogPipeline, probe: Engine, arrivals: "_Arrivals | None"
) -> tuple[float, float | None]:
    """Times in ms until one new prompt is found, and until the log's own reader has its record."""
    (record,) = probe.records(1)
    read = None if arrivals is None else arrivals.expect(record)
    began_s = time.perf_counter()
    appending = asyncio.create_task(pipeline.append([record]))
    await pipeline.wait_for(probe, pause_s=0.0)
    seen_s = time.perf_counter()
    await appending
    read_at_s = None if read is None else await read
    return (seen_s - began_s) * 1e3, None if read_at_s is None else (read_at_s - began_s) * 1e3


class _Arrivals:
    """Records when its own reader gets the expected records."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._expected: dict[bytes, asyncio.Future[float]] = {}

    def expect(self, record: bytes) -> "asyncio.Future[float]":
        """A future of the time at which `record` is read, on the performance counter."""
        return self._expected.setdefault(record, asyncio.get_running_loop().create_future())

    async def follow(self) -> None:
        """Read until cancelled."""
        while True:
            part = await self._reader.read(_READ_S)
            now_s = time.perf_counter()
            for record in part.records:
                if len(record) < _PROBE_BYTES_MAX and (read := self._expected.pop(record, None)):
                    read.set_result(now_s)


@asynccontextmanager
async def _arrivals(
    transport: str, pipeline: LogPipeline
) -> AsyncGenerator[_Arrivals | None, None]:
    """Follow the log with a reader of our own, for Kafka only."""
    reader = open_reader(pipeline.url, cell=CELL) if transport == "kafka" else None
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
    """The load's records. Encoding takes longer than the measured work, so it is done beforehand."""
    engines = [
        Engine(worker_id, LONG_EVENTS, epoch, np.random.default_rng(worker_id))
        for worker_id in range(2, 2 + _ENGINES)
    ]
    each = max(1, blocks // (LONG_EVENTS.blocks_a_record * _ENGINES))
    together = zip(*(engine.records(each) for engine in engines), strict=True)
    return [record for records in together for record in records]


async def _load(pipeline: LogPipeline, records: Sequence[bytes], blocks_s: float) -> float:
    """Append all records at this rate; return the seconds that it took."""
    began_s, done = time.perf_counter(), 0
    while done < len(records):
        passed_s = time.perf_counter() - began_s
        due = int(passed_s * blocks_s / LONG_EVENTS.blocks_a_record) + 1
        due = min(due, done + _RECORDS_AN_APPEND, len(records))
        if due > done:
            await pipeline.append(records[done:due], pipeline.other)
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
