"""Calls and streams on an event loop, by grpcio's asyncio API."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeAlias

import grpc
from grpc import aio

from kvatlas_client import codec
from kvatlas_client.errors import CallFailed
from kvatlas_client.grpc_options import OPTIONS, STREAM_OPTIONS
from kvatlas_client.query import Query
from kvatlas_client.transport import INTERNAL
from kvatlas_client.types import CellTerms, Matches, ReplicaStatus, WorkersChange

UnaryMethod: TypeAlias = "aio.UnaryUnaryMultiCallable[bytes, bytes]"
StreamMethod: TypeAlias = "aio.UnaryStreamMultiCallable[bytes, bytes]"
CANCELLED = 1


class GrpcAsyncTransport:
    """One grpcio channel per replica, connected when first used."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port."""
        self._channels = {
            replica: aio.insecure_channel(replica, options=OPTIONS) for replica in replicas
        }
        self._find: dict[str, UnaryMethod] = {
            replica: channel.unary_unary(codec.FIND_MATCHES)
            for replica, channel in self._channels.items()
        }

    async def find_matches(self, replica: str, query: Query, timeout_s: float) -> Matches:
        """Ask one replica."""
        data = await _call(replica, self._find[replica], codec.encode_query(query), timeout_s)
        try:
            return codec.decode_matches(data, replica)
        except codec.Undecodable as error:
            raise CallFailed(replica, INTERNAL, f"malformed answer: {error}") from error

    async def close(self) -> None:
        """Give up all connections; calls under way are CANCELLED."""
        for channel in self._channels.values():
            await channel.close()


class Control:
    """The calls that are not hot, which every backend makes through grpcio."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port."""
        self.closed = False
        self._channels = {
            replica: aio.insecure_channel(replica, options=STREAM_OPTIONS) for replica in replicas
        }

    async def status(self, replica: str, timeout_s: float) -> ReplicaStatus:
        """What a replica says of itself."""
        method: UnaryMethod = self._channels[replica].unary_unary(codec.GET_STATUS)
        data = await _call(replica, method, codec.encode_get_status(), timeout_s)
        try:
            return codec.decode_status(data)
        except codec.Undecodable as error:
            raise CallFailed(replica, INTERNAL, f"malformed answer: {error}") from error

    async def watch(
        self, replica: str, terms: CellTerms
    ) -> AsyncGenerator[tuple[WorkersChange, CellTerms]]:
        """A replica's stream of workers, until it fails (CallFailed) or the replica ends it."""
        method: StreamMethod = self._channels[replica].unary_stream(codec.WATCH_WORKERS)
        call = method(codec.encode_watch(terms))
        try:
            async for data in call:
                yield codec.decode_change(data, replica)
        except aio.AioRpcError as error:
            raise _failure(replica, error) from error
        except asyncio.CancelledError:
            _raise_if_task_is_cancelled()
            raise CallFailed(replica, CANCELLED, "the client is closed") from None
        except codec.Undecodable as error:
            raise CallFailed(replica, INTERNAL, f"malformed message: {error}") from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Give up all connections; streams and calls under way are CANCELLED."""
        self.closed = True
        for channel in self._channels.values():
            await channel.close()


async def _call(
    replica: str,
    method: UnaryMethod,
    request: bytes,
    timeout_s: float,
) -> bytes:
    try:
        return await method(request, timeout=timeout_s)
    except aio.AioRpcError as error:
        raise _failure(replica, error) from error
    except asyncio.CancelledError:
        _raise_if_task_is_cancelled()
        raise CallFailed(replica, CANCELLED, "the client is closed") from None


def _raise_if_task_is_cancelled() -> None:
    """Go on with a task's cancellation; grpcio raises the same error when a channel is closed."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _failure(replica: str, error: aio.AioRpcError) -> CallFailed:
    code: grpc.StatusCode = error.code()
    return CallFailed(replica, int(code.value[0]), error.details() or "")
