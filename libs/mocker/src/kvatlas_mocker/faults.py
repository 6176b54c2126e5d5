"""Fault injection: an engine's failures, armed over HTTP and off by default.

Each fault has a count of the requests or messages that it still affects. A request meets at most
one fault; the order below decides which.
"""

from typing import Literal, TypeAlias

import msgspec

Switch: TypeAlias = Literal[
    "error_500", "die_before_first_byte", "die_mid_stream", "hang", "drop_events", "hole_events"
]
REQUEST_SWITCHES: tuple[Switch, ...] = (
    "error_500",
    "die_before_first_byte",
    "die_mid_stream",
    "hang",
)


class FaultRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /debug/fault`. A missing key changes nothing; 0 disarms."""

    error_500: int | None = None  # answer 500
    die_before_first_byte: int | None = None  # close the connection without an answer
    die_mid_stream: int | None = None  # close it after `after_tokens` tokens
    after_tokens: int | None = None
    hang: int | None = None  # send nothing until the client gives up
    drop_events: int | None = None  # messages lost on the wire; a replay has them
    hole_events: int | None = None  # messages lost on the wire and in replays
    restart: bool = False  # as if the process restarted: empty cache, sequence number 0


class Faults:
    """The armed faults of one engine."""

    def __init__(self) -> None:
        self.after_tokens = 1
        self._armed: dict[Switch, int] = {}

    def arm(self, order: FaultRequest) -> None:
        """Set the counts that the request names."""
        for switch in (*REQUEST_SWITCHES, "drop_events", "hole_events"):
            count: int | None = getattr(order, switch)
            if count is not None:
                self._armed[switch] = max(count, 0)
        if order.after_tokens is not None:
            self.after_tokens = max(order.after_tokens, 0)

    def take(self, switch: Switch) -> bool:
        """Whether the fault hits now; decrements its count."""
        left = self._armed.get(switch, 0)
        if left:
            self._armed[switch] = left - 1
        return left > 0

    def for_request(self) -> Switch | None:
        """The fault that a new request meets."""
        return next((switch for switch in REQUEST_SWITCHES if self.take(switch)), None)

    def armed(self) -> dict[str, int]:
        """The remaining counts, by fault."""
        return {switch: count for switch, count in self._armed.items() if count}
