"""Awaits native calls on an event loop."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from kvatlas_native._native import ChannelError, CompletionQueue, FindMatchesError

T = TypeVar("T")


class Completions(Generic[T]):
    """A completion queue that the current event loop watches, and a future for each call.

    The loop is woken once for all calls that have completed since it last looked.
    """

    def __init__(self) -> None:
        self._queue: CompletionQueue[T] = CompletionQueue()
        self._tickets = count()
        self._futures: dict[int, asyncio.Future[T]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._queue.fileno(), self._resolve)

    async def result_of(self, begin: Callable[[CompletionQueue[T], int], None]) -> T:
        """Begin a call, which is given the queue and a ticket, and wait for its answer.

        Raises:
            ChannelError, FindMatchesError: the call failed.
            ChannelError: `close` was called meanwhile.
        """
        ticket = next(self._tickets)
        future: asyncio.Future[T] = self._loop.create_future()
        self._futures[ticket] = future
        try:
            begin(self._queue, ticket)
            return await future
        finally:
            del self._futures[ticket]

    def close(self, error: ChannelError) -> None:
        """Take no more outcomes; calls that wait fail with `error`."""
        self._loop.remove_reader(self._queue.fileno())
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)

    def _resolve(self) -> None:
        for ticket, outcome in self._queue.take():
            future = self._futures.get(ticket)
            if future is None or future.done():
                continue  # The caller was cancelled.
            if isinstance(outcome, ChannelError | FindMatchesError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
