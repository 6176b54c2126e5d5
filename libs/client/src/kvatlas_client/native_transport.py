"""Calls `FindMatches` through the native channel: HTTP/2 on a thread that never waits for the GIL.

A call raises `CallFailed` for every gRPC status but OK; DEADLINE_EXCEEDED after its timeout.
"""

from collections.abc import Sequence

import kvatlas_native
from kvatlas_client.errors import CANCELLED, CallFailed
from kvatlas_native import Matches, Query
from kvatlas_native.completions import Completions


class NativeTransport:
    """One native channel per replica, connected when first used."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port."""
        self._channels = {replica: kvatlas_native.Channel(replica) for replica in replicas}

    def find_matches(self, replica: str, query: Query, timeout_s: float) -> Matches:
        """Ask one replica; other threads run meanwhile."""
        try:
            return self._channels[replica].find_matches(query, timeout_s)
        except kvatlas_native.ChannelError as error:
            raise CallFailed(replica, *error.args) from error

    def close(self) -> None:
        """Close all connections; calls under way may finish."""
        for channel in self._channels.values():
            channel.close()


class NativeAsyncTransport:
    """One native channel per replica, and the completions of the current event loop."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, host:port. Needs a running event loop."""
        self._channels = {replica: kvatlas_native.Channel(replica) for replica in replicas}
        self._completions: Completions[Matches] = Completions()

    async def find_matches(self, replica: str, query: Query, timeout_s: float) -> Matches:
        """Ask one replica."""
        channel = self._channels[replica]
        try:
            return await self._completions.result_of(
                lambda queue, ticket: channel.find_matches_soon(query, timeout_s, queue, ticket)
            )
        except kvatlas_native.ChannelError as error:
            raise CallFailed(replica, *error.args) from error

    async def close(self) -> None:
        """Close all connections; calls under way are CANCELLED."""
        for channel in self._channels.values():
            channel.close()
        self._completions.close(kvatlas_native.ChannelError(CANCELLED, "the client is closed"))
