"""Whom a replica asks: a publisher for what it lacks, a peer for its whole state at the start."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import grpc
from grpc import aio

from kvatlas_chassis import HostPort
from kvatlas_native import WorkerNeed
from kvatlas_wire.v1 import (
    events_pb2,
    indexer_pb2,
    indexer_pb2_grpc,
    publisher_pb2,
    publisher_pb2_grpc,
)

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment is for the world outside
    ("grpc.use_local_subchannel_pool", 1),  # an attempt inherits no other one's reconnect pause
)
_PEER_OPTIONS = (
    *_OPTIONS,
    ("grpc.max_receive_message_length", 64 << 20),  # a status names every worker of the cell
)
T = TypeVar("T")

_SILENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
)


class Unreachable(Exception):  # noqa: N818 - named for what it is
    """The publisher does not answer, or cannot now."""


class Declined(Exception):  # noqa: N818 - named for what it is
    """The publisher answers that it does not have what was asked for."""


class Publisher(Protocol):
    """What can be asked; the answers are records, message by message.

    Iterating raises `Unreachable` or `Declined`.
    """

    def replay(self, need: WorkerNeed) -> AsyncGenerator[Sequence[bytes], None]:
        """Ask for the records after the last one applied."""
        ...

    def snapshot(self, need: WorkerNeed) -> AsyncGenerator[Sequence[bytes], None]:
        """Ask for the whole set as it is now."""
        ...


@asynccontextmanager
async def dial(address: str) -> AsyncGenerator[Publisher, None]:
    """Talk to the publisher at `address` (host:port); the first question connects.

    Raises:
        Unreachable: that is no address.
    """
    try:
        target = str(HostPort.parse(address))
    except ValueError as error:
        raise Unreachable(f"publisher_rpc: {error}") from None
    async with aio.insecure_channel(target, options=_OPTIONS) as channel:
        yield _Connection(target, channel)


class _Connection:
    def __init__(self, address: str, channel: aio.Channel) -> None:
        self._address = address
        self._stub: publisher_pb2_grpc.PublisherAsyncStub = publisher_pb2_grpc.PublisherStub(
            channel
        )

    async def replay(self, need: WorkerNeed) -> AsyncGenerator[Sequence[bytes], None]:
        request = publisher_pb2.ReplayRequest(
            worker=_worker(need), epoch=need.epoch, from_event_id=need.applied + 1
        )
        try:
            async for message in self._stub.Replay(request):
                yield _readable(message).records
        except aio.AioRpcError as error:
            raise self._in_words(error) from error

    async def snapshot(self, need: WorkerNeed) -> AsyncGenerator[Sequence[bytes], None]:
        request = publisher_pb2.SnapshotRequest(worker=_worker(need))
        try:
            async for message in self._stub.Snapshot(request):
                yield _readable(message).records
        except aio.AioRpcError as error:
            raise self._in_words(error) from error

    def _in_words(self, error: aio.AioRpcError) -> Unreachable | Declined:
        text = f"{self._address}: {error.code().name}: {error.details()}"
        return Unreachable(text) if error.code() in _SILENT else Declined(text)


async def dump_of(peer: HostPort, *, patience_s: float) -> AsyncGenerator[bytes, None]:
    """Give the slices of a peer's resumable dump; each may take `patience_s` seconds to come.

    Raises:
        Unreachable: the peer does not answer, or no longer.
        Declined: it is not ready itself, or has no dump.
        TimeoutError: it takes too long.
    """
    async with aio.insecure_channel(str(peer), options=_PEER_OPTIONS) as channel:
        stub: indexer_pb2_grpc.IndexerAsyncStub = indexer_pb2_grpc.IndexerStub(channel)
        try:
            status = await stub.GetStatus(indexer_pb2.GetStatusRequest(), timeout=patience_s)
            if not _readable(status).ready:
                raise Declined("it is not ready itself")
            call = stub.Dump(indexer_pb2.DumpRequest(resumable=True))
            slices = aiter(call)
            while True:
                async with asyncio.timeout(patience_s):
                    message = await anext(slices, None)
                if message is None:
                    return
                yield message.arrow_ipc
        except aio.AioRpcError as error:
            text = f"{error.code().name}: {error.details()}"
            raise Unreachable(text) if error.code() in _SILENT else Declined(text) from error


def _readable(answer: T | None) -> T:
    """Return an answer; grpcio gives None for one that it cannot decode."""
    if answer is None:
        raise Declined("its answer cannot be read")
    return answer


def _worker(need: WorkerNeed) -> events_pb2.Worker:
    return events_pb2.Worker(worker_id=need.worker_id, dp_rank=need.dp_rank)
