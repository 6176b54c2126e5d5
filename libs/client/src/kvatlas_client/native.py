"""Calls by the native channel: HTTP/2 on a thread that never waits for the GIL.

On an event loop, answers gather in an inbox whose file descriptor the loop watches: however many have
come since it last looked, it is woken once and takes them all.
"""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import kvatlas_native
from kvatlas_client.errors import CallFailed
from kvatlas_client.query import Query
from kvatlas_client.types import Matches

Columns: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint32]]


class NativeTransport:
    """One native channel per replica, connected when first used."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port."""
        self._channels = {replica: kvatlas_native.Channel(replica) for replica in replicas}

    def find_matches(self, replica: str, query: Query, timeout_s: float) -> Matches:
        """Ask one replica; other threads run meanwhile."""
        terms = query.terms
        try:
            columns = self._channels[replica].find_matches(
                query.hashes,
                chunks=query.chunks,
                model=terms.model,
                block_size=terms.block_size,
                hash_contract=terms.hash_contract,
                limit=query.limit,
                exact=query.exact,
                timeout_s=timeout_s,
            )
        except kvatlas_native.ChannelError as error:
            raise _failure(replica, error) from error
        return Matches(*columns, replica)

    def close(self) -> None:
        """Give up all connections; calls under way may finish."""
        for channel in self._channels.values():
            channel.close()


class NativeAsyncTransport:
    """One native channel per replica, and one inbox for the loop on which this was made."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port. Needs a running event loop."""
        self._channels = {replica: kvatlas_native.Channel(replica) for replica in replicas}
        self._inbox = kvatlas_native.Inbox()
        self._tickets = count()
        self._waiting: dict[int, asyncio.Future[Columns]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._inbox.fileno(), self._deliver)

    async def find_matches(self, replica: str, query: Query, timeout_s: float) -> Matches:
        """Ask one replica."""
        terms = query.terms
        ticket = next(self._tickets)
        future: asyncio.Future[Columns] = self._loop.create_future()
        self._waiting[ticket] = future
        try:
            self._channels[replica].find_matches_soon(
                query.hashes,
                chunks=query.chunks,
                model=terms.model,
                block_size=terms.block_size,
                hash_contract=terms.hash_contract,
                limit=query.limit,
                exact=query.exact,
                timeout_s=timeout_s,
                inbox=self._inbox,
                ticket=ticket,
            )
            return Matches(*await future, replica)
        except kvatlas_native.ChannelError as error:
            raise _failure(replica, error) from error
        finally:
            del self._waiting[ticket]

    async def close(self) -> None:
        """Give up all connections; calls under way are CANCELLED."""
        self._loop.remove_reader(self._inbox.fileno())
        for channel in self._channels.values():
            channel.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(kvatlas_native.ChannelError(1, "the client is closed"))

    def _deliver(self) -> None:
        for ticket, outcome in self._inbox.take():
            future = self._waiting.get(ticket)
            if future is None or future.done():
                continue  # Nobody waits any more: the caller was cancelled.
            if isinstance(outcome, kvatlas_native.ChannelError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


def _failure(replica: str, error: kvatlas_native.ChannelError) -> CallFailed:
    code, message = error.args
    return CallFailed(replica, code, message)
