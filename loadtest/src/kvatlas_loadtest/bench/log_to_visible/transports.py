"""Starts each measured transport with a real server, and an indexer that reads it."""

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kvatlas_client import AsyncIndexer
from kvatlas_events import LogUnavailable, LogWriter, RecordsRejected, open_writers
from kvatlas_loadtest.bench.cell import BLOCK_SIZE, CELL, MODEL, indexer_command
from kvatlas_loadtest.bench.log_to_visible.engine_records import Engine
from kvatlas_loadtest.bench.rows import Row
from kvatlas_loadtest.supervisor import FleetError, Process, Supervisor
from kvatlas_testing.kafka import EmbeddedKafka
from kvatlas_testing.valkey import EmbeddedValkey

TRANSPORTS = ("grpc", "redis", "kafka")
VISIBLE_S = 60.0
"""Longest time until an appended record is found, in seconds."""
_POLL_S = 0.001
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class LogPipeline:
    """One transport, from a writer to an indexer's answers.

    Attributes:
        url: the log's URL for a publisher.
        writer: appends to the log.
        other: another writer, with a connection of its own, as of another publisher.
        indexer: client of the replica that reads the log.
        replica: the replica's process.
    """

    url: str
    writer: LogWriter
    other: LogWriter
    indexer: AsyncIndexer
    replica: Process

    async def append(self, records: Sequence[bytes], writer: LogWriter | None = None) -> None:
        """Append to the log; retry if it does not answer, as a publisher does.

        Raises:
            FleetError: it rejects them, or does not answer within `VISIBLE_S`.
        """
        began_s = time.perf_counter()
        while True:
            try:
                await (writer or self.writer).append(records)
            except RecordsRejected as error:
                raise FleetError(str(error)) from error
            except LogUnavailable as error:
                if time.perf_counter() - began_s > VISIBLE_S:
                    raise FleetError(str(error)) from error
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def sees(self, engine: Engine) -> bool:
        """Whether the engine's last prompt is found with all of its blocks."""
        chain = engine.last_chain
        found = await self.indexer.find_matches(sequence_hashes=chain, deadline_ms=5_000)
        held = zip(found.worker_ids.tolist(), found.depths.tolist(), strict=True)
        return (engine.worker_id, len(chain)) in held

    async def wait_for(self, engine: Engine, *, pause_s: float = _POLL_S) -> None:
        """Poll until the engine's last prompt is found.

        Raises:
            FleetError: it is not found within `VISIBLE_S`.
        """
        began_s = time.perf_counter()
        while not await self.sees(engine):
            if time.perf_counter() - began_s > VISIBLE_S:
                raise FleetError(f"{self.writer.name}: what was appended is not found")
            await asyncio.sleep(pause_s)


def skipped_row(bench: str, transport: str) -> Row | None:
    """The row with the reason why a transport cannot be measured here; None: it can."""
    obstacle = EmbeddedKafka.obstacle() if transport == "kafka" else None
    if obstacle is None:
        return None
    return Row(bench, f"{transport}: left out", 0, "-", settings={"because": obstacle})


@asynccontextmanager
async def open_pipeline(
    transport: str, *, kept_bytes: int = 0
) -> AsyncGenerator[LogPipeline, None]:
    """Run the transport's server and an indexer that reads it, for as long as the context lasts.

    The indexer takes `kept_bytes` of memory at start, like one that has been running for a while.
    """
    with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as logs, ExitStack() as servers:
        url = _serve(transport, servers)
        async with Supervisor(Path(logs), ready_timeout_s=60) as supervisor:
            (indexer,) = await supervisor.start(
                [indexer_command(url, "--memory-bytes-kept", str(kept_bytes))]
            )
            if transport == "grpc":
                url = f"grpc://{indexer.address()}"
            writer, other = (open_writers(url, cell=CELL)[0] for _ in range(2))
            try:
                asks = AsyncIndexer([indexer.address()], model=MODEL, block_size=BLOCK_SIZE)
                async with asks:
                    pipeline = LogPipeline(url, writer, other, asks, indexer)
                    for each in (writer, other):
                        await pipeline.append([], each)  # connects
                    yield pipeline
            finally:
                await writer.close()
                await other.close()


def _serve(transport: str, servers: ExitStack) -> str:
    """Start the log's server; return the value of the indexer's `--log`. `servers` stops it."""
    match transport:
        case "redis":
            valkey = EmbeddedValkey()
            servers.callback(valkey.stop)
            valkey.start()
            return valkey.url
        case "kafka":
            kafka = EmbeddedKafka()
            servers.callback(kafka.close)
            kafka.start()
            return f"kafka://{kafka.address}"
        case _:
            return "grpc:"
