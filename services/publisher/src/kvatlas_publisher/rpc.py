"""The gRPC server of `kvatlas.v1.Publisher`, health and reflection.

Indexers call `Replay` and `Snapshot` to recover records that the log lost. Both first seal all
pending events, and take their answer in the same step of the event loop, so the records that follow
on the log continue the answer exactly. At most eight calls are answered at once, because a snapshot
stays in memory until it is sent.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NoReturn, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kvatlas_chassis import FatalError, HostPort
from kvatlas_events import WorkerKey
from kvatlas_publisher.epoch.epoch import Epoch
from kvatlas_publisher.epoch.replay_ring import RecordsNotKept
from kvatlas_wire.v1 import events_pb2, publisher_pb2, publisher_pb2_grpc

_SERVICE = "kvatlas.v1.Publisher"
_MESSAGE_BYTES_MAX = 2 << 20
"""Size of the records in one message; a record has at most 1 MiB, and clients take at least 4."""
_CALLS_AT_ONCE = 8
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),  # a call of a client that vanished ends
    ("grpc.keepalive_timeout_ms", 5_000),
)


class Source(Protocol):
    """The publisher of one worker, as calls need it."""

    @property
    def worker(self) -> WorkerKey:
        """Key of the worker that is served."""
        ...

    def sealed_epoch(self) -> Epoch | None:
        """Return the current epoch with nothing pending; None: there is none."""
        ...


class _Context(Protocol):
    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn: ...


class _Publisher(publisher_pb2_grpc.PublisherServicer):
    def __init__(self) -> None:
        self.sources: Sequence[Source] | None = None
        self._calls = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def Replay(  # noqa: N802 - the RPC's name
        self, request: publisher_pb2.ReplayRequest, context: _Context
    ) -> AsyncIterator[publisher_pb2.ReplayResponse]:
        async with self._calls:
            for records in _messages(await self._replay(request, context)):
                yield publisher_pb2.ReplayResponse(records=records)

    async def Snapshot(  # noqa: N802 - the RPC's name
        self, request: publisher_pb2.SnapshotRequest, context: _Context
    ) -> AsyncIterator[publisher_pb2.SnapshotResponse]:
        async with self._calls:
            epoch = await self._epoch(request.worker, context)
            for records in _messages(epoch.snapshot()):
                yield publisher_pb2.SnapshotResponse(records=records)

    async def ListWorkers(  # noqa: N802 - the RPC's name
        self, request: publisher_pb2.ListWorkersRequest, context: _Context
    ) -> publisher_pb2.ListWorkersResponse:
        del request
        sources = await self._started(context)
        return publisher_pb2.ListWorkersResponse(
            workers=[
                events_pb2.Worker(worker_id=each.worker.worker_id, dp_rank=each.worker.dp_rank)
                for each in sources
                if each.sealed_epoch() is not None
            ]
        )

    async def _replay(
        self, request: publisher_pb2.ReplayRequest, context: _Context
    ) -> Sequence[bytes]:
        epoch = await self._epoch(request.worker, context)
        header = epoch.header
        if request.epoch != header.epoch:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"worker {header.worker} is in epoch {header.epoch}, not {request.epoch}",
            )
        if request.from_event_id == 0:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "event ids count from 1")
        try:
            return epoch.replay_ring.since(request.from_event_id)
        except RecordsNotKept as error:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))

    async def _epoch(self, requested: events_pb2.Worker, context: _Context) -> Epoch:
        """Return the worker's current epoch; end the call if there is none."""
        worker = WorkerKey(requested.worker_id, requested.dp_rank)
        sources = await self._started(context)
        source = next((each for each in sources if each.worker == worker), None)
        if source is None:
            served = ", ".join(str(each.worker) for each in sources)
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"worker {worker} is not served here; served: {served}"
            )
        epoch = source.sealed_epoch()
        if epoch is None:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, f"the engine of worker {worker} has not been heard of"
            )
        return epoch

    async def _started(self, context: _Context) -> Sequence[Source]:
        if self.sources is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this publisher is starting")
        return self.sources


def _messages(records: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Group records into messages of a size that every client takes."""
    message: list[bytes] = []
    size = 0
    for record in records:
        if message and size + len(record) > _MESSAGE_BYTES_MAX:
            yield message
            message, size = [], 0
        message.append(record)
        size += len(record)
    if message:
        yield message


class RpcServer:
    """The publisher's gRPC server, from `start` to `close`."""

    def __init__(self, server: grpc.aio.Server, address: HostPort, publisher: _Publisher) -> None:
        self._server = server
        self._publisher = publisher
        self.address = address

    @classmethod
    async def start(cls, listen: HostPort) -> "RpcServer":
        """Listen and serve; until `serve_workers`, calls are answered with UNAVAILABLE.

        Raises:
            FatalError: the address cannot be used.
        """
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        publisher = _Publisher()
        publisher_pb2_grpc.add_PublisherServicer_to_server(publisher, server)
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection(
            (_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        try:
            port = server.add_insecure_port(str(listen))
        except RuntimeError:
            raise FatalError(
                f"cannot listen on --listen {listen}: address in use or not ours"
            ) from None
        await server.start()
        for name in ("", _SERVICE):
            await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        return cls(server, HostPort(listen.host, port), publisher)

    def serve_workers(self, sources: Sequence[Source]) -> None:
        """Answer calls for these workers from now on."""
        self._publisher.sources = sources

    async def close(self, grace_s: float) -> None:
        """Refuse new calls, and wait at most `grace_s` seconds for running ones."""
        await self._server.stop(grace_s)
