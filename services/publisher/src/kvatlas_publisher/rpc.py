"""`kvatlas.v1.Publisher`, health and reflection.

`Replay` and `Snapshot` are what an indexer asks for to recover without the log; this build answers
UNIMPLEMENTED, and the indexer recovers by the snapshot that a delivery sends.
"""

from collections.abc import AsyncIterator
from typing import Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kvatlas_chassis import FatalError, HostPort
from kvatlas_wire.v1 import publisher_pb2, publisher_pb2_grpc

_SERVICE = "kvatlas.v1.Publisher"


class _Context(Protocol):
    async def abort(self, code: grpc.StatusCode, details: str) -> None: ...


class _Publisher(publisher_pb2_grpc.PublisherServicer):
    async def Replay(  # noqa: N802 - the RPC's name
        self,
        request: publisher_pb2.ReplayRequest,  # noqa: ARG002 - the signature is gRPC's
        context: _Context,
    ) -> AsyncIterator[publisher_pb2.ReplayResponse]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Replay is not in this build")
        yield publisher_pb2.ReplayResponse()

    async def Snapshot(  # noqa: N802 - the RPC's name
        self,
        request: publisher_pb2.SnapshotRequest,  # noqa: ARG002 - the signature is gRPC's
        context: _Context,
    ) -> AsyncIterator[publisher_pb2.SnapshotResponse]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Snapshot is not in this build")
        yield publisher_pb2.SnapshotResponse()


class RpcServer:
    """The publisher's gRPC server; `close` stops it."""

    def __init__(self, server: grpc.aio.Server, address: HostPort) -> None:
        self._server = server
        self.address = address

    @classmethod
    async def start(cls, listen: HostPort) -> "RpcServer":
        """Listen and serve.

        Raises:
            FatalError: the address cannot be used.
        """
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        publisher_pb2_grpc.add_PublisherServicer_to_server(_Publisher(), server)
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
        return cls(server, HostPort(listen.host, port))

    async def close(self, grace_s: float) -> None:
        """Refuse new calls and wait for running ones."""
        await self._server.stop(grace_s)
