"""Calls by the native channel: HTTP/2 on a thread that never waits for the GIL."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import kvatlas_native
from kvatlas_client.errors import CallFailed
from kvatlas_client.query import Query
from kvatlas_client.types import Matches
from kvatlas_native.letterbox import Letterbox

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
    """One native channel per replica, and one letterbox for the loop on which this was made."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port. Needs a running event loop."""
        self._channels = {replica: kvatlas_native.Channel(replica) for replica in replicas}
        self._letterbox: Letterbox[Columns] = Letterbox()

    async def find_matches(self, replica: str, query: Query, timeout_s: float) -> Matches:
        """Ask one replica."""
        terms = query.terms

        def begin(inbox: "kvatlas_native.Inbox[Columns]", ticket: int) -> None:
            self._channels[replica].find_matches_soon(
                query.hashes,
                chunks=query.chunks,
                model=terms.model,
                block_size=terms.block_size,
                hash_contract=terms.hash_contract,
                limit=query.limit,
                exact=query.exact,
                timeout_s=timeout_s,
                inbox=inbox,
                ticket=ticket,
            )

        try:
            return Matches(*await self._letterbox.outcome(begin), replica)
        except kvatlas_native.ChannelError as error:
            raise _failure(replica, error) from error

    async def close(self) -> None:
        """Give up all connections; calls under way are CANCELLED."""
        for channel in self._channels.values():
            channel.close()
        self._letterbox.close(kvatlas_native.ChannelError(1, "the client is closed"))


def _failure(replica: str, error: kvatlas_native.ChannelError) -> CallFailed:
    code, message = error.args
    return CallFailed(replica, code, message)
