"""The stage that the frontend's tests play on."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest

from tests.integration.frontend.stage import Stage, until


@pytest.fixture
async def stage() -> AsyncGenerator[Stage]:
    async with AsyncExitStack() as stack:
        built = Stage(stack)
        yield built
        if hasattr(built, "frontend"):
            await until(built.nothing_in_flight)
