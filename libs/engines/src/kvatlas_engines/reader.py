"""The shape that every engine's reader has, and what they share.

A reader is one engine's life long: it remembers which cache group it indexes. After a restart of
the engine a fresh one is made.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from kvatlas_engines.events import Cleared, EngineEvent, Reason, Unindexable
from kvatlas_engines.fields import NotIndexable, optional_text, tier
from kvatlas_engines.raw import FieldOrder, MalformedEvent, RawEvent


class EngineReader(Protocol):
    """Turns one engine's raw events into the neutral model, in order."""

    @property
    def order(self) -> FieldOrder:
        """The order of fields in this engine's array-shaped events, for `decode_payload`."""
        ...

    @property
    def blind_spots(self) -> frozenset[str]:
        """What the engine's release cannot tell apart, in words for a warning.

        Grows with what is read. Such blocks are indexed as if they had none of it.
        """
        ...

    def read(self, events: Sequence[RawEvent | MalformedEvent]) -> list[EngineEvent]:
        """Translate a batch's events. Raises nothing: what cannot be used is `Unindexable`."""
        ...


def read_guarded(
    event: RawEvent | MalformedEvent, read: Callable[[RawEvent], list[EngineEvent]]
) -> list[EngineEvent]:
    """Translate one event with `read`; what it refuses becomes one `Unindexable`."""
    if isinstance(event, MalformedEvent):
        return [Unindexable(Reason.MALFORMED_EVENT, 0, event.detail, may_hide_removal=True)]
    try:
        return read(event)
    except NotIndexable as refusal:
        return [
            Unindexable(
                refusal.reason,
                announced_blocks(event),
                str(refusal),
                block_size=refusal.block_size,
                may_hide_removal=event.kind != "BlockStored"
                and refusal.reason is not Reason.OTHER_GROUP,
            )
        ]


def announced_blocks(event: RawEvent) -> int:
    """Return how many blocks the event speaks of, as far as it says."""
    hashes = event.fields.get("block_hashes")
    return len(cast("list[object]", hashes)) if isinstance(hashes, list) else 0


def read_cleared(event: RawEvent) -> list[EngineEvent]:
    """`AllBlocksCleared` names no medium today; one that does is taken at its word."""
    if optional_text(event.fields, "medium") is None:
        return [Cleared(None)]
    return [Cleared(tier(event.fields))]


def unknown_event(event: RawEvent) -> NotIndexable:
    """Return the refusal of a type of event from a newer release."""
    return NotIndexable(Reason.UNKNOWN_EVENT, f"event type {event.kind[:64]!r}")
