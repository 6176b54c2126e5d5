"""Outcomes of native calls as an event loop awaits them."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from kvatlas_native._native import ChannelError, Inbox

T = TypeVar("T")


class Letterbox(Generic[T]):
    """An inbox on the event loop on which it was made, and a future for each call that is awaited.

    However many outcomes have come since the loop last looked, it is woken once and takes them all.
    """

    def __init__(self) -> None:
        self._inbox: Inbox[T] = Inbox()
        self._tickets = count()
        self._waiting: dict[int, asyncio.Future[T]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._inbox.fileno(), self._deliver)

    async def outcome(self, begin: Callable[[Inbox[T], int], None]) -> T:
        """Begin a call, which is told inbox and ticket, and wait for what comes of it.

        Raises:
            ChannelError: it failed, or the letterbox was closed meanwhile.
        """
        ticket = next(self._tickets)
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting[ticket] = future
        try:
            begin(self._inbox, ticket)
            return await future
        finally:
            del self._waiting[ticket]

    def close(self, error: ChannelError) -> None:
        """Take no more outcomes; whoever waits gets `error`."""
        self._loop.remove_reader(self._inbox.fileno())
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def _deliver(self) -> None:
        for ticket, outcome in self._inbox.take():
            future = self._waiting.get(ticket)
            if future is None or future.done():
                continue  # Nobody waits any more: the caller was cancelled.
            if isinstance(outcome, ChannelError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
