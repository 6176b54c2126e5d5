"""Log to visible: the rate of blocks from appending records until `FindMatches` finds all of them.

Several tasks append to one writer, each for its own engines, as a publisher process with many
engines does. Writers, the log's server and the indexer share the machine's cores.
"""

import time
from dataclasses import dataclass

import numpy as np
import uvloop

from kvatlas_loadtest.bench.log_to_visible.engine_records import (
    LONG_EVENTS,
    SHORT_EVENTS,
    Engine,
    Shape,
)
from kvatlas_loadtest.bench.log_to_visible.transports import (
    TRANSPORTS,
    LogPipeline,
    open_pipeline,
    skipped_row,
)
from kvatlas_loadtest.bench.processes import cpu_s
from kvatlas_loadtest.bench.rows import Medians, Row
from kvatlas_loadtest.supervisor import gather_or_cancel

NAME = "log-to-visible"
LONG_TARGETS = {"grpc": 15e6, "redis": 3e6, "kafka": 3e6}
SHORT_TARGET = 2e6
_ENGINES = 16
_TASKS = 4
_RECORDS_AN_APPEND = 64
_ROUNDS = 3
_BLOCKS = {LONG_EVENTS: 4 << 20, SHORT_EVENTS: 1 << 20}
_QUICK_BLOCKS = 1 << 14
_KEPT, _QUICK_KEPT = 1 << 30, 16 << 20
"""More than all rounds' blocks take, bytes."""


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Blocks a second from a log's writer to FindMatches, by transport."""
    return uvloop.run(_measure(quick=quick))


async def _measure(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for transport in TRANSPORTS:
        if missing := skipped_row(NAME, transport):
            rows.append(missing)
            continue
        async with open_pipeline(transport) as pipeline:
            for shape in (LONG_EVENTS, SHORT_EVENTS):
                rows += await _rate(transport, pipeline, shape, quick=quick)
        if transport == "grpc":
            async with open_pipeline(
                transport, kept_bytes=_QUICK_KEPT if quick else _KEPT
            ) as pipeline:
                for shape in (LONG_EVENTS, SHORT_EVENTS):
                    rows += await _rate(transport, pipeline, shape, quick=quick, kept=True)
    return rows


async def _rate(
    transport: str, pipeline: LogPipeline, shape: Shape, *, quick: bool, kept: bool = False
) -> list[Row]:
    blocks = _QUICK_BLOCKS if quick else _BLOCKS[shape]
    figures = Medians()
    for number in range(1 if quick else _ROUNDS):
        records = _Round.of(shape, blocks, number)
        used_s = cpu_s(pipeline.replica)
        figures.add("blocks_s", blocks / await records.visible_s(pipeline))
        figures.add("cpu_ns", (cpu_s(pipeline.replica) - used_s) / blocks * 1e9)
    name = f"{transport}{', memory kept' * kept}: {shape.blocks_an_event}-block events"
    target = LONG_TARGETS[transport] if shape is LONG_EVENTS else SHORT_TARGET
    settings = {
        "blocks": blocks,
        "blocks_a_record": shape.blocks_a_record,
        "records_an_append": _RECORDS_AN_APPEND,
        "appenders": _TASKS,
        "engines": _ENGINES,
    }
    return [
        Row(NAME, name, figures["blocks_s"], "blocks/s", target, "higher", settings),
        Row(NAME, f"{name}, indexer CPU", figures["cpu_ns"], "ns/block", settings=settings),
    ]


@dataclass(frozen=True, slots=True)
class _Round:
    """New engines and their records."""

    engines: list[Engine]
    records: list[list[bytes]]

    @classmethod
    def of(cls, shape: Shape, blocks: int, number: int) -> "_Round":
        """Encode all records before the measurement."""
        first = (number * 2 + (shape is LONG_EVENTS)) * _ENGINES + 1
        epoch = time.time_ns() // 1_000
        engines = [
            Engine(worker_id, shape, epoch, np.random.default_rng(worker_id))
            for worker_id in range(first, first + _ENGINES)
        ]
        each = max(1, blocks // (shape.blocks_a_record * _ENGINES))
        return cls(engines, [engine.records(each) for engine in engines])

    async def visible_s(self, pipeline: LogPipeline) -> float:
        """Time from the first append until every engine's last prompt is found, in seconds."""
        began_s = time.perf_counter()
        tasks = [_append(pipeline, self.records[task::_TASKS]) for task in range(_TASKS)]
        await gather_or_cancel(tasks)
        for engine in self.engines:
            await pipeline.wait_for(engine)
        return time.perf_counter() - began_s


async def _append(pipeline: LogPipeline, engines: list[list[bytes]]) -> None:
    """Append the engines' records, one of each in turn.

    Raises:
        FleetError: the log rejects them.
    """
    merged = [record for together in zip(*engines, strict=True) for record in together]
    for at in range(0, len(merged), _RECORDS_AN_APPEND):
        await pipeline.append(merged[at : at + _RECORDS_AN_APPEND])
