"""Calls to others: to a publisher for lost records, and to a peer for its whole state at the start."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import grpc
from grpc import aio

from kvatlas_chassis import HostPort
from kvatlas_native import RecoveryRequest
from kvatlas_wire.channel_options import CHANNEL_OPTIONS
from kvatlas_wire.v1 import (
    events_pb2,
    indexer_pb2,
    indexer_pb2_grpc,
    publisher_pb2,
    publisher_pb2_grpc,
)

T = TypeVar("T")

_NO_ANSWER = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
)


class Unreachable(Exception):  # noqa: N818 - named for what it is
    """The other side does not answer, or cannot answer now."""


class Declined(Exception):  # noqa: N818 - named for what it is
    """The other side answers that it does not have the requested data."""


class Publisher(Protocol):
    """A publisher's calls; their answers are records, message by message.

    Iterating raises `Unreachable` or `Declined`.
    """

    def replay(self, request: RecoveryRequest) -> AsyncGenerator[Sequence[bytes], None]:
        """Ask for the records after the last applied event."""
        ...

    def snapshot(self, request: RecoveryRequest) -> AsyncGenerator[Sequence[bytes], None]:
        """Ask for the worker's whole set as it is now."""
        ...


@asynccontextmanager
async def dial(address: str) -> AsyncGenerator[Publisher, None]:
    """Open a channel to the publisher at `address` (host:port); the first call connects.

    Raises:
        Unreachable: it is not an address.
    """
    try:
        target = str(HostPort.parse(address))
    except ValueError as error:
        raise Unreachable(f"publisher_rpc: {error}") from None
    async with aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield _Connection(target, channel)


class _Connection:
    def __init__(self, address: str, channel: aio.Channel) -> None:
        self._address = address
        self._stub: publisher_pb2_grpc.PublisherAsyncStub = publisher_pb2_grpc.PublisherStub(
            channel
        )

    async def replay(self, request: RecoveryRequest) -> AsyncGenerator[Sequence[bytes], None]:
        replay = publisher_pb2.ReplayRequest(
            worker=_worker(request), epoch=request.epoch, from_event_id=request.applied + 1
        )
        try:
            async for message in self._stub.Replay(replay):
                yield _decoded(message).records
        except aio.AioRpcError as error:
            raise _failure(error, f"{self._address}: ") from error

    async def snapshot(self, request: RecoveryRequest) -> AsyncGenerator[Sequence[bytes], None]:
        snapshot = publisher_pb2.SnapshotRequest(worker=_worker(request))
        try:
            async for message in self._stub.Snapshot(snapshot):
                yield _decoded(message).records
        except aio.AioRpcError as error:
            raise _failure(error, f"{self._address}: ") from error


async def dump_of(peer: HostPort, *, patience_s: float) -> AsyncGenerator[bytes, None]:
    """Yield the slices of a peer's resumable dump.

    Raises:
        Unreachable: the peer does not answer, or stops answering.
        Declined: it is not ready itself, or refuses.
        TimeoutError: a slice takes longer than `patience_s` seconds.
    """
    async with aio.insecure_channel(str(peer), options=CHANNEL_OPTIONS) as channel:
        stub: indexer_pb2_grpc.IndexerAsyncStub = indexer_pb2_grpc.IndexerStub(channel)
        try:
            status = await stub.GetStatus(indexer_pb2.GetStatusRequest(), timeout=patience_s)
            if not _decoded(status).ready:
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
            raise _failure(error) from error


def _decoded(answer: T | None) -> T:
    """Return the answer; grpcio gives None for one that it cannot decode."""
    if answer is None:
        raise Declined("its answer cannot be decoded")
    return answer


def _failure(error: aio.AioRpcError, prefix: str = "") -> Unreachable | Declined:
    text = f"{prefix}{error.code().name}: {error.details()}"
    return Unreachable(text) if error.code() in _NO_ANSWER else Declined(text)


def _worker(request: RecoveryRequest) -> events_pb2.Worker:
    return events_pb2.Worker(worker_id=request.worker_id, dp_rank=request.dp_rank)
