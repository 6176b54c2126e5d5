"""What the client needs of a transport. Each is one way to call replicas; they share one contract.

`find_matches` raises `CallFailed` for every gRPC status but OK, DEADLINE_EXCEEDED after `timeout_s`.
"""

from typing import Literal, Protocol, TypeAlias

from kvatlas_client.query import Query
from kvatlas_client.types import Matches

Backend: TypeAlias = Literal["native", "grpc"]

# Statuses that a transport reports of itself.
INTERNAL = 13


class Transport(Protocol):
    """Blocking calls; thread-safe."""

    def find_matches(self, replica: str, query: Query, timeout_s: float) -> Matches:
        """Ask one replica."""
        ...

    def close(self) -> None:
        """Give up all connections."""
        ...


class AsyncTransport(Protocol):
    """Calls on the event loop on which the transport was made."""

    async def find_matches(self, replica: str, query: Query, timeout_s: float) -> Matches:
        """Ask one replica. A cancelled call is abandoned."""
        ...

    async def close(self) -> None:
        """Give up all connections."""
        ...
