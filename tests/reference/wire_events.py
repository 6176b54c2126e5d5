"""An engine's messages as tests write them, in the map encoding of today's releases."""

from collections.abc import Mapping, Sequence

import msgspec

from kvatlas_events import Tier

WireEvent = Mapping[str, object]
_MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "DISK", Tier.REMOTE: "EXTERNAL"}


def stored(
    hashes: Sequence[int],
    tokens: Sequence[int],
    *,
    parent: int | None = None,
    tier: Tier = Tier.DEVICE,
    **fields: object,
) -> WireEvent:
    """A chain of blocks with as many tokens each; `fields` are further ones of the engine."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": len(tokens) // len(hashes),
        "medium": _MEDIA[tier],
        **fields,
    }


def stored_by_hash(hashes: Sequence[int], tier: Tier) -> WireEvent:
    """An offload, which names blocks by hash alone."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 0,
        "medium": _MEDIA[tier],
    }


def removed(hashes: Sequence[int], tier: Tier = Tier.DEVICE) -> WireEvent:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": _MEDIA[tier]}


def cleared(tier: Tier | None = None) -> WireEvent:
    event: WireEvent = {"type": "AllBlocksCleared"}
    return event if tier is None else {**event, "medium": _MEDIA[tier]}


def payload(*events: object) -> bytes:
    """The payload of one message, which names no rank."""
    return msgspec.msgpack.encode([1.0, list(events), None])
