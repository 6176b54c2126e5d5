"""Blocking calls by grpcio."""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import grpc

from kvatlas_client import codec
from kvatlas_client.errors import CallFailed
from kvatlas_client.grpc_options import OPTIONS
from kvatlas_client.query import Query
from kvatlas_client.transport import INTERNAL
from kvatlas_client.types import Matches, ReplicaStatus

Answer = TypeVar("Answer")
UnaryMethod: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"


class GrpcTransport:
    """One grpcio channel per replica, connected when first used."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port."""
        self._channels = {
            replica: grpc.insecure_channel(replica, options=OPTIONS) for replica in replicas
        }
        self._find: dict[str, UnaryMethod] = {
            replica: channel.unary_unary(codec.FIND_MATCHES)
            for replica, channel in self._channels.items()
        }
        self._status: dict[str, UnaryMethod] = {
            replica: channel.unary_unary(codec.GET_STATUS)
            for replica, channel in self._channels.items()
        }

    def find_matches(self, replica: str, query: Query, timeout_s: float) -> Matches:
        """Ask one replica."""
        data = _call(replica, self._find[replica], codec.encode_query(query), timeout_s)
        return _decoded(replica, lambda: codec.decode_matches(data, replica))

    def status(self, replica: str, timeout_s: float) -> ReplicaStatus:
        """What a replica says of itself."""
        data = _call(replica, self._status[replica], codec.encode_get_status(), timeout_s)
        return _decoded(replica, lambda: codec.decode_status(data))

    def close(self) -> None:
        """Give up all connections; calls under way are CANCELLED."""
        for channel in self._channels.values():
            channel.close()


def _call(
    replica: str,
    method: UnaryMethod,
    request: bytes,
    timeout_s: float,
) -> bytes:
    try:
        return method(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise failure(replica, error) from error


def failure(replica: str, error: grpc.RpcError) -> CallFailed:
    """The status that grpcio's error stands for."""
    if isinstance(error, grpc.Call):
        return CallFailed(replica, int(error.code().value[0]), error.details() or "")
    return CallFailed(replica, INTERNAL, str(error))


def _decoded(replica: str, decode: Callable[[], Answer]) -> Answer:
    try:
        return decode()
    except codec.Undecodable as error:
        raise CallFailed(replica, INTERNAL, f"malformed answer: {error}") from error
