"""The state goes to the disk beside the event loop, not on it."""

import asyncio
import threading
from pathlib import Path

from kvatlas_chassis import TaskSet
from kvatlas_indexer.keeping import keeping
from kvatlas_indexer.snapshots import StateFiles
from kvatlas_native import Cell
from tests.unit.cell.bench import Bench


class Waiting(StateFiles):
    """Writes when the event loop says so, which it cannot while it writes itself."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.loop = asyncio.get_running_loop()
        self.begun, self.go = asyncio.Event(), threading.Event()

    def write(self, cell: Cell, unix_ms: int) -> bool:
        self.loop.call_soon_threadsafe(self.begun.set)
        assert self.go.wait(30)
        return super().write(cell, unix_ms)


async def test_the_loop_goes_on_while_the_state_is_written(tmp_path: Path) -> None:
    files, tasks = Waiting(tmp_path), TaskSet()
    bench = Bench()
    async with keeping(bench.cell, files, tasks, interval_s=0.001, unix_ms=lambda: bench.now_ms):
        await files.begun.wait()
        assert files.written == 0
        files.go.set()
    assert files.written >= 1
    await tasks.close()


async def test_the_last_state_too_is_written_beside_the_loop(tmp_path: Path) -> None:
    files, tasks = Waiting(tmp_path), TaskSet()
    bench = Bench()

    async def let_go() -> None:
        await files.begun.wait()
        files.go.set()

    letting_go = asyncio.create_task(let_go())
    async with keeping(bench.cell, files, tasks, interval_s=1_000, unix_ms=lambda: bench.now_ms):
        assert not files.begun.is_set()
    await letting_go
    assert files.written == 1
    await tasks.close()
