"""The stream of workers, from one replica after another.

A frontend must not lose its picture of the fleet because a replica restarts, so a stream that ends is
replaced by another replica's, which begins with all workers. A replica that accepts the call but says
nothing is left after a while: the first message comes at once from any that works. After that a stream
may be silent for as long as nothing changes; the connection's keepalive tells if its host is gone.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from random import Random

from kvatlas_client.errors import CallFailed, CellMismatch
from kvatlas_client.grpc_async import Control
from kvatlas_client.health import Replicas
from kvatlas_client.settings import Settings
from kvatlas_client.tries import raise_if_final
from kvatlas_client.types import WorkersChange

FIRST_MESSAGE_S_MAX = 2.0
UNAVAILABLE = 14


class Watch:
    """One unending stream of changes. Its view of the replicas' health is its own."""

    def __init__(
        self, control: Control, settings: Settings, rng: Random, clock: Callable[[], float]
    ) -> None:
        """Nothing happens before `changes` is iterated."""
        self._control = control
        self._settings = settings
        self._replicas = Replicas(settings.replicas, rng)
        self._clock = clock
        self.replica: str | None = None
        """Whose stream is being followed; None while there is none."""

    async def changes(self) -> AsyncGenerator[WorkersChange]:
        """Every change, of one replica at a time, until the control is closed; may raise CellMismatch."""
        while not self._control.closed:
            await asyncio.sleep(self._replicas.wait_s(self._clock()))
            replica = self._replicas.order(self._clock())[0]
            try:
                async with aclosing(self._stream(replica)) as stream:
                    async for change in stream:
                        yield change
            except CallFailed as failure:
                raise_if_final(failure, self._settings.terms)
                self._replicas.failed(replica, self._clock(), failure.message)

    async def _stream(self, replica: str) -> AsyncGenerator[WorkersChange]:
        """One replica's stream, checked on its first message; always ends with CallFailed."""
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
