"""Both clients behind one interface, so that one suite tests both."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from kvatlas_client import (
    AsyncIndexer,
    CallFailed,
    Indexer,
    Matches,
    ReplicaHealth,
    ReplicaStatus,
)
from tests.conformance.client.scripted import ScriptedReplica


class Client(Protocol):
    """A client under test, as blocking calls."""

    def find_matches(self, *args: Any, **arguments: Any) -> Matches: ...  # noqa: ANN401 - any call
    def status(self, replica: str) -> ReplicaStatus: ...
    def get_status(self) -> Mapping[str, ReplicaStatus | CallFailed]: ...
    def replicas(self) -> list[ReplicaHealth]: ...
    def close(self) -> None: ...


class Blocking:
    """An `AsyncIndexer` on an event loop of its own."""

    def __init__(self, client: AsyncIndexer) -> None:
        self._client = client
        self._runner = asyncio.Runner()

    def find_matches(self, *args: Any, **arguments: Any) -> Matches:  # noqa: ANN401 - handed on as they are
        return self._runner.run(self._client.find_matches(*args, **arguments))

    def status(self, replica: str) -> ReplicaStatus:
        return self._runner.run(self._client.status(replica))

    def get_status(self) -> Mapping[str, ReplicaStatus | CallFailed]:
        return self._runner.run(self._client.get_status())

    def replicas(self) -> list[ReplicaHealth]:
        return self._client.replicas()

    def close(self) -> None:
        self._runner.run(self._client.close())

    def end(self) -> None:
        self.close()
        self._runner.close()


MakeClient = Callable[..., Client]


@pytest.fixture(params=["threads", "asyncio"])
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    with ExitStack() as stack:

        def make(*replicas: ScriptedReplica | str, **arguments: Any) -> Client:  # noqa: ANN401 - handed on as they are
            addresses = [r if isinstance(r, str) else r.address for r in replicas]
            if request.param == "threads":
                client = Indexer(addresses, **arguments)
                stack.callback(client.close)
                return client
            blocking = Blocking(AsyncIndexer(addresses, **arguments))
            stack.callback(blocking.end)
            return blocking

        yield make


@pytest.fixture
def replica() -> Iterator[ScriptedReplica]:
    with ScriptedReplica() as scripted:
        yield scripted


@pytest.fixture
def other() -> Iterator[ScriptedReplica]:
    with ScriptedReplica() as scripted:
        yield scripted
