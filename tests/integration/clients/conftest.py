"""One cell serves a module; every test finds its engines without faults."""

from collections.abc import AsyncGenerator

import pytest_asyncio

from tests.integration.clients.cell import Cell, running_cell


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_cell() -> AsyncGenerator[Cell]:
    async with running_cell(request_bytes_max=100_000, attempts_max=2) as cell:
        yield cell


@pytest_asyncio.fixture(loop_scope="module")
async def cell(module_cell: Cell) -> AsyncGenerator[Cell]:
    yield module_cell
    await module_cell.calm()
