"""Faults on demand: what an engine does wrong, armed over HTTP, off by default.

Each switch holds how many requests or messages it still spoils. Requests consult the switches in
the order below; one request meets one fault.
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


class FaultOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /debug/fault`. A key that is left out stays as it is; 0 disarms."""

    error_500: int | None = None  # answer 500
    die_before_first_byte: int | None = None  # close the connection without an answer
    die_mid_stream: int | None = None  # close it after `after_tokens` tokens
    after_tokens: int | None = None
    hang: int | None = None  # say nothing until the client gives up
    drop_events: int | None = None  # messages lost on the wire; replay has them
    hole_events: int | None = None  # messages that replay never had
    restart: bool = False  # as if the engine's process came back: empty cache, seq 0


class Faults:
    """The armed switches of one engine."""

    def __init__(self) -> None:
        self.after_tokens = 1
        self._armed: dict[Switch, int] = {}

    def arm(self, order: FaultOrder) -> None:
        """Set the switches that the order names."""
        for switch in (*REQUEST_SWITCHES, "drop_events", "hole_events"):
            count: int | None = getattr(order, switch)
            if count is not None:
                self._armed[switch] = max(count, 0)
        if order.after_tokens is not None:
            self.after_tokens = max(order.after_tokens, 0)

    def take(self, switch: Switch) -> bool:
        """Whether the switch spoils what comes now; uses up one of its count."""
        left = self._armed.get(switch, 0)
        if left:
            self._armed[switch] = left - 1
        return left > 0

    def for_request(self) -> Switch | None:
        """The fault that a new request meets."""
        return next((switch for switch in REQUEST_SWITCHES if self.take(switch)), None)

    def armed(self) -> dict[str, int]:
        """What is still to come, by switch."""
        return {switch: count for switch, count in self._armed.items() if count}
