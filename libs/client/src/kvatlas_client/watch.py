"""Follows the workers of a cell through one replica after another.

A frontend must keep its view of the fleet when a replica restarts. So when a stream ends, another
replica's stream follows, which begins with all workers. A working replica sends its first message at
once; one that sends none is left after 2 s. Later a stream may be silent as long as nothing changes;
the connection's keepalive detects a host that is gone.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from kvatlas_client.errors import UNAVAILABLE, CallFailed, CellMismatch, raise_if_final
from kvatlas_client.grpc_transport import GrpcControl
from kvatlas_client.settings import Settings
from kvatlas_client.types import WorkersChange
from kvatlas_native import Replicas

FIRST_MESSAGE_S_MAX = 2.0


class Watch:
    """One unending stream of changes, with its own view of the replicas' health."""

    def __init__(
        self, control: GrpcControl, settings: Settings, seed: int, clock: Callable[[], float]
    ) -> None:
        """Nothing happens before `changes` is iterated."""
        self._control = control
        self._settings = settings
        self._replicas = Replicas(settings.replicas, seed)
        self._clock = clock
        self.replica: str | None = None
        """The replica whose stream is followed; None while there is none."""

    async def changes(self) -> AsyncGenerator[WorkersChange]:
        """Yield every change, from one replica at a time, until the client is closed. CellMismatch."""
        while not self._control.closed:
            await asyncio.sleep(self._replicas.wait_s(self._clock()))
            replica = self._replicas.choose(self._clock())
            try:
                async with aclosing(self._stream(replica)) as stream:
                    async for change in stream:
                        yield change
            except CallFailed as failure:
                raise_if_final(failure, self._settings.terms)
                self._replicas.failed(replica, self._clock(), failure.message)

    async def _stream(self, replica: str) -> AsyncGenerator[WorkersChange]:
        """Yield the changes of one replica; checks its first message, always ends with CallFailed."""
        asked = self._settings.terms
        async with aclosing(self._control.watch(replica, asked)) as stream:
            try:
                async with asyncio.timeout(FIRST_MESSAGE_S_MAX):
                    change, served = await anext(stream)
            except TimeoutError as error:
                text = f"no list of workers within {FIRST_MESSAGE_S_MAX:g} s"
                raise CallFailed(replica, UNAVAILABLE, text) from error
            except StopAsyncIteration as error:
                raise CallFailed(replica, UNAVAILABLE, "empty list of workers") from error
            if not asked.agree_with(served):
                raise CellMismatch(replica, asked, f"serves {served}")
            self._replicas.answered(replica)
            self.replica = replica
            try:
                yield change
                async for change, _ in stream:
                    yield change
            finally:
                self.replica = None
        raise CallFailed(replica, UNAVAILABLE, "the replica ended its stream")
