"""`kvatlas bench engine-events`: many engines, one publisher process, a log, one indexer.

The time runs from the first message until `FindMatches` finds all blocks of every engine's last
prompt. A worker's records are applied in order, so all its earlier events are in the index then.
All processes share the machine's cores.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
import zmq
import zmq.asyncio

from kvatlas_loadtest.bench.cell import ANY_PORT, BLOCK_SIZE, CELL, MODEL
from kvatlas_loadtest.bench.engine_events import mirror
from kvatlas_loadtest.bench.engine_events.traffic import Shape
from kvatlas_loadtest.bench.log_to_visible.transports import LogPipeline, open_pipeline
from kvatlas_loadtest.bench.processes import cpu_s
from kvatlas_loadtest.bench.rows import Medians, Row, Setting
from kvatlas_loadtest.supervisor import Command, FleetError, Process, Supervisor, kvatlas

NAME = "engine-events"
TRANSPORTS = ("grpc", "redis")
PREFILL = Shape(32, 1)
DECODE = Shape(1, 16)
DECODE_ONE = Shape(1, 1)
BLOCKS_S_TARGETS = {PREFILL: 1.5e6, DECODE: 0.3e6, DECODE_ONE: 0.3e6}
ENGINE_BLOCKS_S = 2_000.0
CPU_PERCENT_TARGET = 2.0
_ENGINES = 16
_BLOCKS = {PREFILL: 2_000_000, DECODE: 1_000_000, DECODE_ONE: 1_000_000}
_QUICK_BLOCKS = 4_096
_ROUNDS = 3
_VISIBLE_S = 60.0
_POLL_S = 0.005
_PACED_S = 8.0
_QUICK_PACED_S = 0.3
_WARM_S = 2.0


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Engine events over ZMQ: blocks per second to FindMatches; mirror's and publisher's cost."""
    rows = mirror.rows(quick=quick)
    return rows + uvloop.run(_measure(quick=quick))


async def _measure(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    shapes = (PREFILL,) if quick else tuple(BLOCKS_S_TARGETS)
    for transport in TRANSPORTS[:1] if quick else TRANSPORTS:
        rows += [await _throughput(transport, shape, quick=quick) for shape in shapes]
    for engines in (1,) if quick else (1, 8):
        paced = (PREFILL,) if quick else (PREFILL, DECODE)
        rows += [await _cpu(shape, engines, quick=quick) for shape in paced]
    return rows


async def _throughput(transport: str, shape: Shape, *, quick: bool) -> Row:
    engines = 2 if quick else _ENGINES
    messages = shape.whole_messages((_QUICK_BLOCKS if quick else _BLOCKS[shape]) // engines)
    blocks = engines * messages * shape.blocks_a_message
    figures = Medians()
    for _ in range(1 if quick else _ROUNDS):
        async with _fleet(transport, shape, engines, messages, 0.0) as fleet:
            figures.add("blocks_s", blocks / await fleet.seconds_to_visible())
    return Row(
        NAME,
        f"engine to visible, {shape.blocks_an_event}-block events",
        figures["blocks_s"],
        "blocks/s",
        BLOCKS_S_TARGETS[shape],
        "higher",
        {"log": transport, "blocks": blocks} | _settings(shape, engines),
    )


async def _cpu(shape: Shape, engines: int, *, quick: bool) -> Row:
    """Processor time of a publisher for engines at a usual rate, after a warm-up."""
    seconds = _QUICK_PACED_S if quick else _PACED_S
    warm_s = 0.0 if quick else _WARM_S
    blocks = int(ENGINE_BLOCKS_S * (seconds + warm_s + 1.0))
    messages = shape.whole_messages(blocks)
    async with _fleet("grpc", shape, engines, messages, ENGINE_BLOCKS_S) as fleet:
        await fleet.go()
        await asyncio.sleep(warm_s)
        used_s, began_s = cpu_s(fleet.publisher), time.monotonic()
        await asyncio.sleep(seconds)
        used_s, took_s = cpu_s(fleet.publisher) - used_s, time.monotonic() - began_s
    return Row(
        NAME,
        "publisher CPU an engine",
        100 * used_s / took_s / engines,
        "% of a core",
        CPU_PERCENT_TARGET,
        "lower",
        {"log": "grpc", "blocks_s": int(ENGINE_BLOCKS_S)} | _settings(shape, engines),
    )


def _settings(shape: Shape, engines: int) -> dict[str, Setting]:
    return {"engines": engines, "events_a_message": shape.events_a_message}


@dataclass(frozen=True, slots=True)
class _Fleet:
    """Engines that wait for a start signal, their publisher, a log, and an indexer."""

    pipeline: LogPipeline
    publisher: Process
    control: zmq.asyncio.Socket

    async def go(self) -> dict[str, Any]:
        """Start the engines; return the time of the first message, and the last prompts."""
        await self.control.send(b"go")
        return json.loads(await self.control.recv())

    async def seconds_to_visible(self) -> float:
        """Time from the first message to the last answer, in seconds."""
        begun = await self.go()
        for worker, prompt in enumerate(begun["prompts"], start=1):
            await self._wait_for(worker, np.array(prompt, dtype=np.uint64))
        return time.monotonic() - begun["first_s"]

    async def _wait_for(self, worker: int, prompt: "np.ndarray[Any, np.dtype[np.uint64]]") -> None:
        began_s = time.monotonic()
        while True:
            found = await self.pipeline.indexer.find_matches(chunk_hashes=prompt, deadline_ms=5_000)
            held = zip(found.worker_ids.tolist(), found.depths.tolist(), strict=True)
            if (worker, len(prompt)) in held:
                return
            if time.monotonic() - began_s > _VISIBLE_S:
                raise FleetError(f"the last prompt of engine {worker} is not found")
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _fleet(
    transport: str, shape: Shape, engines: int, messages: int, blocks_s: float
) -> AsyncGenerator[_Fleet, None]:
    async with open_pipeline(transport) as pipeline:
        with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as folder:
            async with Supervisor(Path(folder), ready_timeout_s=60) as supervisor:
                words = (
                    *("--engines", str(engines), "--messages", str(messages)),
                    *("--blocks-an-event", str(shape.blocks_an_event)),
                    *("--events-a-message", str(shape.events_a_message)),
                    *("--blocks-s", str(blocks_s)),
                )
                module = "kvatlas_loadtest.bench.engine_events.sender"
                sender = Command("engines", (sys.executable, "-m", module, *words))
                (sending,) = await supervisor.start([sender])
                config = _config(Path(folder), pipeline.url, sending.ready["events"])
                command = kvatlas("publisher", "publisher", "--config", str(config))
                (publisher,) = await supervisor.start([command])
                context = zmq.asyncio.Context()
                try:
                    control = context.socket(zmq.REQ)
                    control.connect(sending.address("control"))
                    yield _Fleet(pipeline, publisher, control)
                finally:
                    context.destroy(linger=0)


def _config(folder: Path, log: str, events: Sequence[str]) -> Path:
    """Write the publisher's configuration: one entry per engine."""
    document = {
        "listen": ANY_PORT,
        "admin": ANY_PORT,
        "model": MODEL,
        "block_size": BLOCK_SIZE,
        "cell": CELL,
        "log": [log],
        "engines": [
            {"engine": "vllm", "events": address, "worker_id": number}
            for number, address in enumerate(events, start=1)
        ],
    }
    path = folder / "publisher.yaml"
    path.write_text(json.dumps(document))  # which is YAML, too
    return path
