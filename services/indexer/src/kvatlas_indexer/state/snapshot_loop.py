"""Writes the replica's state to disk at an interval, and once more at the end."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from kvatlas_chassis import TaskSet
from kvatlas_indexer.state.files import StateFiles
from kvatlas_native import Cell


@asynccontextmanager
async def snapshot_loop(
    cell: Cell,
    files: StateFiles | None,
    tasks: TaskSet,
    *,
    interval_s: float,
    unix_ms: Callable[[], int],
) -> AsyncGenerator[None]:
    """Write the state every `interval_s` seconds while the body runs, and at its end."""
    if files is None:
        yield
        return
    writing = asyncio.Lock()

    async def write() -> None:
        async with writing:
            await asyncio.to_thread(files.write, cell, unix_ms())

    async def loop() -> None:
        while True:
            await asyncio.sleep(interval_s)
            # Shielded, since a thread cannot be cancelled and two must not write at a time.
            await asyncio.shield(write())

    await asyncio.to_thread(files.check_writable)
    task = tasks.start(loop(), name="state files")
    try:
        yield
    finally:
        task.cancel()
        await write()
