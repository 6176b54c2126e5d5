"""Sets of background tasks, whose failures are never lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet:
    """The background tasks of one owner.

    `failed` raises the first failure; the service awaits it beside its stop signal. `close` cancels
    the tasks that still run, and waits for them.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run `work` until it ends or the set is closed."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def failed(self) -> None:
        """Wait until a task fails, then raise what it raised."""
        await asyncio.shield(self._failed)

    async def close(self) -> None:
        """Cancel every task and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failed.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # mark as retrieved: a service may end without awaiting it
