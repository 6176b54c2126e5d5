"""A frontend in this process before two mock engines, for the official clients."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kvatlas_testing.mock_engine import EngineProcess, running_engine
from tests.integration.frontend.stage import BLOCK_SIZE, MODEL, Stage

LORA = "org/sql"
_FLAGS = (
    *("--model", MODEL, "--lora", LORA, "--block-size", str(BLOCK_SIZE), "--blocks", "4096"),
    *("--speedup", "inf", "--default-output-tokens", "12"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A stage with real engines behind it."""

    stage: Stage
    engines: dict[int, EngineProcess]  # by worker id

    @property
    def url(self) -> str:
        return f"http://{self.stage.frontend.api.address}"

    async def fault(self, worker_id: int, **armed: Any) -> None:  # noqa: ANN401 - any fault
        url = f"{self.engines[worker_id].url}/debug/fault"
        async with self.stage.client.post(url, json=armed) as response:
            assert response.status == 200

    async def calm(self) -> None:
        """Disarm what a test has armed and did not use up."""
        for worker_id in self.engines:
            await self.fault(
                worker_id, error_500=0, die_before_first_byte=0, die_mid_stream=0, hang=0
            )
        self.stage.indexers.matches = []


@asynccontextmanager
async def running_cell(**settings: Any) -> AsyncGenerator[Cell]:  # noqa: ANN401 - any setting
    """Two engines, 1 and 2, and a frontend that knows them."""
    async with AsyncExitStack() as stack:
        stage = Stage(stack)
        processes = await asyncio.gather(
            *(stack.enter_async_context(running_engine(*_FLAGS)) for _ in range(2))
        )
        await stage.start(ask_engine=True, **settings)
        engines = dict(enumerate(processes, 1))
        await stage.announce(
            *(stage.record(worker_id, url=engine.url) for worker_id, engine in engines.items())
        )
        yield Cell(stage, engines)
