"""Calls one indexer replica directly, without the client that chooses between replicas.

Only this module of the load tests uses generated code.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from kvatlas_wire import WorkerKey
from kvatlas_wire.v1 import indexer_pb2, indexer_pb2_grpc

_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A replica's state of one worker.

    Attributes:
        state: `LIVE`, `RECOVERING`, `STALE` or `OVER_BUDGET`.
        last_event_id: the last applied event.
        blocks: number of live blocks, on any tier.
        digests: (tier, number, XOR) of the live sequence hashes.
    """

    state: str
    epoch: int
    last_event_id: int
    blocks: int
    engine_url: str
    digests: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Status:
    """A replica's status."""

    ready: bool
    workers: dict[WorkerKey, WorkerStatus]
    memberships: int


class Replica:
    """A connection to the indexer at `host:port`; `replica` opens and closes it.

    Every call raises grpc.aio.AioRpcError if there is no answer.
    """

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self._stub = indexer_pb2_grpc.IndexerStub(channel)

    async def find_matches(self, sequence_hashes: NDArray[np.uint64]) -> dict[WorkerKey, int]:
        """Depth by worker, for all workers that hold part of the prompt."""
        answer = await self._stub.FindMatches(
            indexer_pb2.FindMatchesRequest(sequence_hashes=sequence_hashes.tolist()),
            timeout=_ANSWER_S,
        )
        workers = map(WorkerKey, answer.worker_ids, answer.dp_ranks)
        return dict(zip(workers, answer.depths, strict=True))

    async def status(self) -> Status:
        """Its status, with the state of every worker."""
        answer = await self._stub.GetStatus(indexer_pb2.GetStatusRequest(), timeout=_ANSWER_S)
        return Status(
            ready=answer.ready,
            workers={
                WorkerKey(each.info.worker.worker_id, each.info.worker.dp_rank): _worker(each)
                for each in answer.workers
            },
            memberships=answer.memberships,
        )

    async def dump_bytes(self) -> int:
        """Receive its whole state; return the number of bytes."""
        call = self._stub.Dump(indexer_pb2.DumpRequest())
        return sum([len(message.arrow_ipc) async for message in call])


@asynccontextmanager
async def replica(address: str) -> AsyncGenerator[Replica]:
    """A connection for as long as the context lasts; opened by its first call."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield Replica(address, channel)


Push = Callable[[Sequence[bytes]], Awaitable[None]]
"""Sends records and returns when they are applied. Raises RuntimeError if some are rejected."""


@asynccontextmanager
async def ingest(address: str) -> AsyncGenerator[Push]:
    """An `Ingest` stream to the indexer at `host:port`, like that of a publisher."""

    async def push(records: Sequence[bytes]) -> None:
        await call.write(indexer_pb2.IngestRequest(records=records))
        answer = await call.read()
        if not isinstance(answer, indexer_pb2.IngestResponse):  # the library's mark of the end
            raise ConnectionError(f"the indexer at {address} ended its Ingest stream")
        if answer.rejected:
            raise RuntimeError(f"the indexer rejects records: {answer.first_rejection}")

    async with grpc.aio.insecure_channel(address) as channel:
        call = indexer_pb2_grpc.IndexerStub(channel).Ingest()
        yield push
        await call.done_writing()


def _worker(status: indexer_pb2.WorkerStatus) -> WorkerStatus:
    info = status.info
    return WorkerStatus(
        state=indexer_pb2.WorkerState.Name(info.state).removeprefix("WORKER_STATE_"),
        epoch=info.epoch,
        last_event_id=info.last_event_id,
        blocks=info.blocks,
        engine_url=info.engine_url,
        digests=tuple(
            sorted((digest.tier, digest.blocks, digest.digest) for digest in status.digests)
        ),
    )
