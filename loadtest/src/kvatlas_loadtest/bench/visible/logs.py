"""The transports under measurement, each with a real server, and an indexer behind it."""

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kvatlas_client import AsyncIndexer
from kvatlas_events import LogUnavailable, LogWriter, RecordsRejected, open_writers
from kvatlas_events.embedded import EmbeddedValkey
from kvatlas_events.embedded_kafka import EmbeddedKafka
from kvatlas_loadtest.bench.rows import Row
from kvatlas_loadtest.bench.visible.engines import BLOCK_SIZE, CELL, MODEL, Engine
from kvatlas_loadtest.supervisor import FleetError, Process, Supervisor, kvatlas

TRANSPORTS = ("grpc", "redis", "kafka")
VISIBLE_S = 60.0
"""After so long what was appended should have been seen."""
_ANY = "127.0.0.1:0"
_POLL_S = 0.001
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Way:
    """One transport's way from a writer to answers.

    Attributes:
        url: of the log, as a publisher is told it.
        writer: appends to it.
        other: does too, on a connection of its own, as another publisher.
        indexer: asks the replica at its end.
        replica: its process.
    """

    url: str
    writer: LogWriter
    other: LogWriter
    indexer: AsyncIndexer
    replica: Process

    async def append(self, records: Sequence[bytes], writer: LogWriter | None = None) -> None:
        """Append to the log; again if it does not answer, as a delivery would.

        Raises:
            FleetError: it refuses them, or does not answer for long.
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
        """Whether the engine's last prompt is found, whole."""
        chain = engine.last_chain
        found = await self.indexer.find_matches(sequence_hashes=chain, deadline_ms=5_000)
        held = zip(found.worker_ids.tolist(), found.depths.tolist(), strict=True)
        return (engine.worker_id, len(chain)) in held

    async def wait_for(self, engine: Engine, *, pause_s: float = _POLL_S) -> None:
        """Ask until the engine's last prompt is found.

        Raises:
            FleetError: it is not, for long.
        """
        began_s = time.perf_counter()
        while not await self.sees(engine):
            if time.perf_counter() - began_s > VISIBLE_S:
                raise FleetError(f"{self.writer.name}: what was appended is not found")
            await asyncio.sleep(pause_s)


def left_out(bench: str, transport: str) -> Row | None:
    """The row that says why a transport cannot be measured here; None: it can."""
    obstacle = EmbeddedKafka.obstacle() if transport == "kafka" else None
    if obstacle is None:
        return None
    return Row(bench, f"{transport}: left out", 0, "-", settings={"because": obstacle})


@asynccontextmanager
async def opened(transport: str, *, kept_bytes: int = 0) -> AsyncGenerator[Way, None]:
    """Start the transport's server and an indexer that follows it, both for this block only.

    `kept_bytes` of memory the indexer takes beforehand, as one has that ran for a while.
    """
    with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as said, ExitStack() as servers:
        url = _serve(transport, servers)
        async with Supervisor(Path(said), ready_timeout_s=60) as supervisor:
            (indexer,) = await supervisor.start(
                [
                    kvatlas(
                        *("indexer", "indexer", "--listen", _ANY, "--admin", _ANY, "--log", url),
                        *("--cell", CELL, "--model", MODEL, "--block-size", str(BLOCK_SIZE)),
                        *("--memory-bytes-kept", str(kept_bytes)),
                    )
                ]
            )
            if transport == "grpc":
                url = f"grpc://{indexer.address()}"
            writer, other = (open_writers(url, cell=CELL)[0] for _ in range(2))
            try:
                asks = AsyncIndexer([indexer.address()], model=MODEL, block_size=BLOCK_SIZE)
                async with asks:
                    way = Way(url, writer, other, asks, indexer)
                    for each in (writer, other):
                        await way.append([], each)  # connects
                    yield way
            finally:
                await writer.close()
                await other.close()


def _serve(transport: str, servers: ExitStack) -> str:
    """Return what the indexer's `--log` is told; the server ends with `servers`."""
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
