"""The specification of payloads: from msgpack to raw events, the same for all engines and releases.

The payload is the msgpack array `[ts, [event, ...], dp_rank]`; an event is a map
`{"type": name, field: value}` or, in older releases, an array `[name, value, ...]` whose order of
fields is the engine's. Lengths mean nothing: newer releases append, older ones are shorter.

Bytes may be anything. Nothing here raises but `MalformedPayload`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import msgspec


class MalformedPayload(ValueError):  # noqa: N818 - named for what it is
    """The bytes are no engine's payload; the text says why."""


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One event with its fields by name, none of them checked."""

    kind: str
    fields: Mapping[str, object]
    positions: int | None
    """How many fields an array carried; None: it was a map. Tells old releases from new ones."""


@dataclass(frozen=True, slots=True)
class MalformedEvent:
    """An element of a batch that is no event."""

    detail: str


@dataclass(frozen=True, slots=True)
class RawBatch:
    """The decoded payload of one message."""

    ts: float
    """The engine's clock, seconds."""
    events: tuple[RawEvent | MalformedEvent, ...]
    dp_rank: int | None
    """None: the engine does not say."""


FieldOrder = Mapping[str, tuple[str, ...]]
"""Per type of event the names of an array's fields after the type."""


def decode_payload(payload: bytes, order: FieldOrder) -> RawBatch:
    """Decode one message's payload; `order` names the fields of array-shaped events.

    Raises:
        MalformedPayload: not msgpack, or not a batch. An element that is no event does not spoil
            the others: it becomes a `MalformedEvent`.
    """
    try:
        document: object = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayload(f"not msgpack: {error}") from None
    if not isinstance(document, list):
        raise MalformedPayload("a batch is an array")
    batch = cast("list[object]", document)
    if len(batch) < 2:
        raise MalformedPayload(f"a batch of {len(batch)} elements; time and events are expected")
    ts, events = batch[0], batch[1]
    if type(ts) is not float and type(ts) is not int:
        raise MalformedPayload("a batch begins with its time")
    if not isinstance(events, list):
        raise MalformedPayload("a batch's second element is its array of events")
    return RawBatch(
        ts=float(ts),
        events=tuple(_raw_event(event, order) for event in cast("list[object]", events)),
        dp_rank=_dp_rank(batch[2] if len(batch) > 2 else None),
    )


def _dp_rank(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise MalformedPayload(f"a data-parallel rank of type {type(value).__name__}")
    return value


def _raw_event(event: object, order: FieldOrder) -> RawEvent | MalformedEvent:
    if isinstance(event, dict):
        fields = cast("dict[str, object]", event)
        kind = fields.get("type")
        if type(kind) is not str:
            return MalformedEvent("an event without a type")
        return RawEvent(kind, fields, None)
    elements = cast("list[object]", event) if isinstance(event, list) else []
    if elements:
        kind = elements[0]
        if type(kind) is not str:
            return MalformedEvent("an event that does not begin with its type")
        names = order.get(kind, ())
        positioned = dict(zip(names, elements[1:], strict=False))
        return RawEvent(kind, positioned, len(elements) - 1)
    return MalformedEvent("an event that is neither a map nor an array")
