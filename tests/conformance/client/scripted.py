"""A real gRPC server that does what a test tells it: the other side of the client's contract."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import grpc

from kvatlas_wire.v1 import indexer_pb2, indexer_pb2_grpc

Find = Callable[
    [indexer_pb2.FindMatchesRequest, grpc.ServicerContext], indexer_pb2.FindMatchesResponse
]


def answer(*rows: tuple[int, int, int]) -> Find:
    """Always these (worker_id, dp_rank, depth)."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]

    def find(
        _: indexer_pb2.FindMatchesRequest, __: grpc.ServicerContext
    ) -> indexer_pb2.FindMatchesResponse:
        return indexer_pb2.FindMatchesResponse(
            worker_ids=columns[0], dp_ranks=columns[1], depths=columns[2]
        )

    return find


def refuse(code: grpc.StatusCode, text: str) -> Find:
    """Always this status."""

    def find(
        _: indexer_pb2.FindMatchesRequest, context: grpc.ServicerContext
    ) -> indexer_pb2.FindMatchesResponse:
        context.abort(code, text)
        raise AssertionError

    return find


UNAVAILABLE = refuse(grpc.StatusCode.UNAVAILABLE, "not ready")


class ScriptedReplica(indexer_pb2_grpc.IndexerServicer):
    """One replica, on a port of its own; it can die and come back on the same one."""

    def __init__(self) -> None:
        self.find: Find = answer()
        self.queries: list[indexer_pb2.FindMatchesRequest] = []
        self.status = indexer_pb2.GetStatusResponse(replica_id="r")
        self.watch_refusal: tuple[grpc.StatusCode, str] | None = None
        self.silent = False
        self.hanging = threading.Event()
        self._changes: queue.SimpleQueue[indexer_pb2.WatchWorkersResponse | None]
        self._changes = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._port = 0
        self._server: grpc.Server | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Serve, on the port of before if there was one."""
        self._stopping = threading.Event()
        self._changes = queue.SimpleQueue()
        server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        indexer_pb2_grpc.add_IndexerServicer_to_server(self, server)
        self._port = server.add_insecure_port(self.address)
        server.start()
        self._server = server

    def die(self) -> None:
        """Close the port and all connections at once."""
        self._stopping.set()
        self._changes.put(None)
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def hang(
        self, _: indexer_pb2.FindMatchesRequest, __: grpc.ServicerContext
    ) -> indexer_pb2.FindMatchesResponse:
        """A `find` that answers when the replica dies."""
        self.hanging.set()
        self._stopping.wait()
        return indexer_pb2.FindMatchesResponse()

    def say(self, change: indexer_pb2.WatchWorkersResponse) -> None:
        """Send it to whoever watches."""
        self._changes.put(change)

    def end_streams(self) -> None:
        """End the stream of whoever watches."""
        self._changes.put(None)

    def FindMatches(  # noqa: N802 - the generated name
        self, request: indexer_pb2.FindMatchesRequest, context: grpc.ServicerContext
    ) -> indexer_pb2.FindMatchesResponse:
        self.queries.append(request)
        return self.find(request, context)

    def WatchWorkers(  # noqa: N802 - the generated name
        self, request: indexer_pb2.WatchWorkersRequest, context: grpc.ServicerContext
    ) -> Iterator[indexer_pb2.WatchWorkersResponse]:
        del request
        if self.watch_refusal is not None:
            context.abort(*self.watch_refusal)
        while not self.silent or not self._stopping.wait():
            change = self._changes.get()
            if change is None:
                return
            yield change

    def GetStatus(  # noqa: N802 - the generated name
        self, request: indexer_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> indexer_pb2.GetStatusResponse:
        del request, context
        return self.status

    def Ingest(  # noqa: N802 - the generated name
        self, request_iterator: object, context: grpc.ServicerContext
    ) -> Iterator[indexer_pb2.IngestResponse]:
        del request_iterator
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not part of the client's contract")
        yield from ()

    def Dump(  # noqa: N802 - the generated name
        self, request: object, context: grpc.ServicerContext
    ) -> Iterator[indexer_pb2.DumpResponse]:
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not part of the client's contract")
        yield from ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.die()


def nobody() -> str:
    """An address on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"
