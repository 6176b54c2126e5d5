"""The shape of every reader, and the parts that readers share.

A reader serves from one start of the engine to the next, since it remembers the indexed cache group.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from kvatlas_engines import RefusalReason
from tests.reference.engines.events import Cleared, EngineEvent, Unindexable
from tests.reference.engines.fields import NotIndexable, optional_text, tier
from tests.reference.engines.payload import FieldOrder, MalformedEvent, RawEvent


class EngineReader(Protocol):
    """Turns one engine's raw events into the neutral model, in order."""

    @property
    def order(self) -> FieldOrder:
        """The order of fields in this engine's array-shaped events, for `decode_payload`."""
        ...

    @property
    def blind_spots(self) -> frozenset[str]:
        """Properties of prompts that the engine's release does not name, in words for a warning.

        The set grows as events are read. Blocks are indexed as if no prompt had such a property.
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
        return [Unindexable(RefusalReason.MALFORMED_EVENT, 0, event.detail, may_hide_removal=True)]
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
                and refusal.reason is not RefusalReason.OTHER_GROUP,
            )
        ]


def announced_blocks(event: RawEvent) -> int:
    """Return how many blocks the event speaks of, as far as it says."""
    hashes = event.fields.get("block_hashes")
    return len(cast("list[object]", hashes)) if isinstance(hashes, list) else 0


def read_cleared(event: RawEvent) -> list[EngineEvent]:
    """No known release names a medium in `AllBlocksCleared`. If one does, only that tier is cleared."""
    if optional_text(event.fields, "medium") is None:
        return [Cleared(None)]
    return [Cleared(tier(event.fields))]


def unknown_event(event: RawEvent) -> NotIndexable:
    """Return the refusal of a type of event from a newer release."""
    return NotIndexable(RefusalReason.UNKNOWN_EVENT, f"event type {event.kind[:64]!r}")
