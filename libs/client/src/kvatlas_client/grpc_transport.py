"""Status calls and worker streams through grpcio; only `FindMatches` has a native channel."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from kvatlas_client import codec
from kvatlas_client.errors import CANCELLED, INTERNAL, CallFailed
from kvatlas_client.types import CellTerms, ReplicaStatus, WorkersChange
from kvatlas_wire.channel_options import LASTING_CHANNEL_OPTIONS, STREAM_CHANNEL_OPTIONS

UnaryMethod: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
AsyncUnaryMethod: TypeAlias = "aio.UnaryUnaryMultiCallable[bytes, bytes]"
AsyncStreamMethod: TypeAlias = "aio.UnaryStreamMultiCallable[bytes, bytes]"


class GrpcStatus:
    """Status calls for threads; one channel per replica, connected when first used."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port."""
        self._channels = {
            replica: grpc.insecure_channel(replica, options=LASTING_CHANNEL_OPTIONS)
            for replica in replicas
        }

    def status(self, replica: str, timeout_s: float) -> ReplicaStatus:
        """Ask a replica for its status."""
        method: UnaryMethod = self._channels[replica].unary_unary(codec.GET_STATUS)
        try:
            data = method(codec.encode_get_status(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise _failure(replica, error) from error
        return _decoded_status(replica, data)

    def close(self) -> None:
        """Close all connections; calls under way are CANCELLED."""
        for channel in self._channels.values():
            channel.close()


class GrpcControl:
    """Status calls and worker streams for asyncio; one channel per replica."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port."""
        self.closed = False
        self._channels = {
            replica: aio.insecure_channel(replica, options=STREAM_CHANNEL_OPTIONS)
            for replica in replicas
        }

    async def status(self, replica: str, timeout_s: float) -> ReplicaStatus:
        """Ask a replica for its status."""
        method: AsyncUnaryMethod = self._channels[replica].unary_unary(codec.GET_STATUS)
        try:
            data = await method(codec.encode_get_status(), timeout=timeout_s)
        except aio.AioRpcError as error:
            raise _failure(replica, error) from error
        except asyncio.CancelledError:
            _raise_if_task_is_cancelled()
            raise CallFailed(replica, CANCELLED, "the client is closed") from None
        return _decoded_status(replica, data)

    async def watch(
        self, replica: str, terms: CellTerms
    ) -> AsyncGenerator[tuple[WorkersChange, CellTerms]]:
        """Follow a replica's workers until the stream fails (CallFailed) or the replica ends it."""
        method: AsyncStreamMethod = self._channels[replica].unary_stream(codec.WATCH_WORKERS)
        call = method(codec.encode_watch(terms))
        try:
            async for data in call:
                yield codec.decode_change(data, replica)
        except aio.AioRpcError as error:
            raise _failure(replica, error) from error
        except asyncio.CancelledError:
            _raise_if_task_is_cancelled()
            raise CallFailed(replica, CANCELLED, "the client is closed") from None
        except DecodeError as error:
            raise CallFailed(replica, INTERNAL, f"malformed message: {error}") from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close all connections; streams and calls under way are CANCELLED."""
        self.closed = True
        for channel in self._channels.values():
            await channel.close()


def _raise_if_task_is_cancelled() -> None:
    """Pass a task's cancellation on; grpcio raises the same error when a channel is closed."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _failure(replica: str, error: grpc.RpcError) -> CallFailed:
    """Return the status that grpcio's error stands for."""
    if isinstance(error, grpc.Call | aio.AioRpcError):
        return CallFailed(replica, int(error.code().value[0]), error.details() or "")
    return CallFailed(replica, INTERNAL, str(error))


def _decoded_status(replica: str, data: bytes) -> ReplicaStatus:
    try:
        return codec.decode_status(data)
    except DecodeError as error:
        raise CallFailed(replica, INTERNAL, f"malformed answer: {error}") from error
