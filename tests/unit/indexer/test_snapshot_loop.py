"""The state is written on a thread, not on the event loop."""

import asyncio
import threading
from pathlib import Path

from kvatlas_chassis import TaskSet
from kvatlas_indexer.state.files import StateFiles
from kvatlas_indexer.state.snapshot_loop import snapshot_loop
from kvatlas_native import Cell
from tests.unit.cell.bench import Bench


class GatedFiles(StateFiles):
    """Writes only when the event loop allows it, which a blocked loop cannot do."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.loop = asyncio.get_running_loop()
        self.begun, self.go = asyncio.Event(), threading.Event()

    def write(self, cell: Cell, unix_ms: int) -> bool:
        self.loop.call_soon_threadsafe(self.begun.set)
        assert self.go.wait(30)
        return super().write(cell, unix_ms)


async def test_the_loop_goes_on_while_the_state_is_written(tmp_path: Path) -> None:
    files, tasks = GatedFiles(tmp_path), TaskSet()
    bench = Bench()
    async with snapshot_loop(
        bench.cell, files, tasks, interval_s=0.001, unix_ms=lambda: bench.now_ms
    ):
        await files.begun.wait()
        assert files.written == 0
        files.go.set()
    assert files.written >= 1
    await tasks.close()


async def test_the_last_state_is_written_on_a_thread_too(tmp_path: Path) -> None:
    files, tasks = GatedFiles(tmp_path), TaskSet()
    bench = Bench()

    async def let_go() -> None:
        await files.begun.wait()
        files.go.set()

    letting_go = asyncio.create_task(let_go())
    async with snapshot_loop(
        bench.cell, files, tasks, interval_s=1_000, unix_ms=lambda: bench.now_ms
    ):
        assert not files.begun.is_set()
    await letting_go
    assert files.written == 1
    await tasks.close()
