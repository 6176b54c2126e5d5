"""`kvatlas.v1.Publisher`, health and reflection.

`Replay` and `Snapshot` are what an indexer asks for to recover without the log. Both first seal all
that was said, in the same instant in which they take what they answer with: what follows on the log
continues it exactly. Few are answered at once, since a snapshot is in memory until it is sent.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NoReturn, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kvatlas_chassis import FatalError, HostPort
from kvatlas_events import Worker
from kvatlas_publisher.life import Life
from kvatlas_publisher.recent import NotKept
from kvatlas_wire.v1 import events_pb2, publisher_pb2, publisher_pb2_grpc

_SERVICE = "kvatlas.v1.Publisher"
_MESSAGE_BYTES_MAX = 2 << 20
"""Of the records in one message; a record is at most 1 MiB, and clients refuse more than 4."""
_ANSWERS_AT_ONCE = 8
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),  # a client that vanished gives its turn back
    ("grpc.keepalive_timeout_ms", 5_000),
)


class Source(Protocol):
    """Who speaks for one worker."""

    @property
    def worker(self) -> Worker:
        """Whose records these are."""
        ...

    def sealed_life(self) -> Life | None:
        """Return the running life with nothing pending; None: there is none now."""
        ...


class _Context(Protocol):
    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn: ...


class _Publisher(publisher_pb2_grpc.PublisherServicer):
    def __init__(self) -> None:
        self.sources: Sequence[Source] | None = None
        self._turns = asyncio.Semaphore(_ANSWERS_AT_ONCE)

    async def Replay(  # noqa: N802 - the RPC's name
        self, request: publisher_pb2.ReplayRequest, context: _Context
    ) -> AsyncIterator[publisher_pb2.ReplayResponse]:
        async with self._turns:
            for records in _messages(await self._replay(request, context)):
                yield publisher_pb2.ReplayResponse(records=records)

    async def Snapshot(  # noqa: N802 - the RPC's name
        self, request: publisher_pb2.SnapshotRequest, context: _Context
    ) -> AsyncIterator[publisher_pb2.SnapshotResponse]:
        async with self._turns:
            life = await self._life(request.worker, context)
            for records in _messages(life.snapshot()):
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
                if each.sealed_life() is not None
            ]
        )

    async def _replay(
        self, request: publisher_pb2.ReplayRequest, context: _Context
    ) -> Sequence[bytes]:
        life = await self._life(request.worker, context)
        if request.epoch != life.header.epoch:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"worker {life.header.worker} is in epoch {life.header.epoch}, not {request.epoch}",
            )
        if request.from_event_id == 0:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "event ids count from 1")
        try:
            return life.recent.since(request.from_event_id)
        except NotKept as error:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))

    async def _life(self, asked: events_pb2.Worker, context: _Context) -> Life:
        """Return the worker's life; ends the call if there is none."""
        worker = Worker(asked.worker_id, asked.dp_rank)
        sources = await self._started(context)
        source = next((each for each in sources if each.worker == worker), None)
        if source is None:
            served = ", ".join(str(each.worker) for each in sources)
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"worker {worker} is not served here; served: {served}"
            )
        life = source.sealed_life()
        if life is None:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, f"the engine of worker {worker} has not been heard of"
            )
        return life

    async def _started(self, context: _Context) -> Sequence[Source]:
        if self.sources is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this publisher is starting")
        return self.sources


def _messages(records: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Cut into messages that no client refuses."""
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
    """The publisher's gRPC server; `close` stops it."""

    def __init__(self, server: grpc.aio.Server, address: HostPort, publisher: _Publisher) -> None:
        self._server = server
        self._publisher = publisher
        self.address = address

    @classmethod
    async def start(cls, listen: HostPort) -> "RpcServer":
        """Listen and serve; until `speak_for`, calls are answered with UNAVAILABLE.

        Raises:
            FatalError: the address cannot be used.
        """
        server = grpc.aio.server(options=_OPTIONS)
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

    def speak_for(self, sources: Sequence[Source]) -> None:
        """Answer for these workers from now on."""
        self._publisher.sources = sources

    async def close(self, grace_s: float) -> None:
        """Refuse new calls and wait for running ones."""
        await self._server.stop(grace_s)
