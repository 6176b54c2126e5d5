"""A real Valkey cluster as child processes: three primaries without replicas, on loopback.

Each node gets an equal range of slots. The cluster accepts writes two seconds after its nodes
start: the server waits that long in case a node belonged to a cluster before.
"""

import asyncio
import socket
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from kvatlas_testing.child_process import EmbeddedServerError, free_port
from kvatlas_testing.valkey import EmbeddedValkey

_SLOTS = 16_384
_FORM_S = 30.0
_POLL_S = 0.02
_NODES = 3


class EmbeddedValkeyCluster:
    """Three nodes. Started again they keep their ports; they begin empty each time.

    Use it as an asynchronous context manager, or by `start` and `stop`, which block.
    """

    def __init__(self) -> None:
        self.nodes = [EmbeddedValkey() for _ in range(_NODES)]
        self._bus_ports: list[int] = []

    @property
    def url(self) -> str:
        """The value for `--log`."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def is_running(self) -> bool:
        """True if all nodes run."""
        return all(node.is_running for node in self.nodes)

    def start(self) -> None:
        """Start the nodes and wait until they are one cluster.

        Raises:
            EmbeddedServerError: a node does not start, or the nodes do not form a cluster.
        """
        for pause_s in self._starting():
            time.sleep(pause_s)

    def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """End all nodes as a crash would."""
        for node in self.nodes:
            node.kill()

    async def __aenter__(self) -> Self:
        for pause_s in self._starting():
            await asyncio.sleep(pause_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _starting(self) -> Iterator[float]:
        """Start the nodes and yield pauses until they are one cluster."""
        try:
            self._start_nodes()
            self._join()
            yield from self._joining()
        except EmbeddedServerError:
            self.kill()
            raise

    def _joining(self) -> Iterator[float]:
        began_s = time.monotonic()
        while not all(map(_is_joined, self.nodes)):
            if time.monotonic() - began_s > _FORM_S:
                raise EmbeddedServerError("the nodes do not become a cluster")
            yield _POLL_S

    def _start_nodes(self) -> None:
        self._bus_ports = []
        for i, node in enumerate(self.nodes):
            node.stop()  # after another node crashed, this one may still run
            bus_port = free_port()
            self._bus_ports.append(bus_port)
            self.nodes[i] = EmbeddedValkey(
                port=node.port,
                options=["--cluster-enabled", "yes", "--cluster-port", str(bus_port)],
            )
            self.nodes[i].start()

    def _join(self) -> None:
        first, *others = self.nodes
        for i, node in enumerate(self.nodes):
            begin, end = i * _SLOTS // _NODES, (i + 1) * _SLOTS // _NODES - 1
            _ask(node, f"CLUSTER ADDSLOTSRANGE {begin} {end}")
            _ask(node, f"CLUSTER SET-CONFIG-EPOCH {i + 1}")
        for node, bus_port in zip(others, self._bus_ports[1:], strict=True):
            _ask(first, f"CLUSTER MEET 127.0.0.1 {node.port} {bus_port}")


def _is_joined(node: EmbeddedValkey) -> bool:
    info = _ask(node, "CLUSTER INFO")
    return "cluster_state:ok" in info and f"cluster_known_nodes:{_NODES}" in info


def _ask(node: EmbeddedValkey, command: str) -> str:
    """Return a node's answer to one command.

    Raises:
        EmbeddedServerError: the node refuses, or does not answer.
    """
    try:
        with socket.create_connection(("127.0.0.1", node.port), timeout=5) as connection:
            connection.sendall(f"{command}\r\nQUIT\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
    except OSError as error:
        raise EmbeddedServerError(f"a node of the cluster does not answer: {error}") from error
    if answer.startswith("-"):
        raise EmbeddedServerError(f"a node of the cluster says {answer.splitlines()[0]}")
    return answer
