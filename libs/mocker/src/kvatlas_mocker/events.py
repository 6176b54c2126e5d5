"""KV-cache events as vLLM 0.33 encodes them.

One message is three frames:

    topic (UTF-8) │ sequence number, 8 bytes big-endian │ msgpack [ts, [event, …], dp_rank]

An event is a map with `type` first, then the fields in the order below. Optional fields with their
default value are left out. Tests compare the bytes with recordings of a real engine.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

ExtraKey: TypeAlias = list[str] | None
"""Further inputs of a block's hash: the adapter's name, then the salt (block 0 only)."""


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Full blocks entered the cache. They are a chain: each block's parent is the one before it."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[ExtraKey] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks left the cache; an eviction sends one event per block."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """The whole cache is empty."""


CacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared

_encoder = msgspec.msgpack.Encoder()


def encode_payload(unix_s: float, events: Sequence[CacheEvent], dp_rank: int) -> bytes:
    """The third frame of a message. `unix_s` is always sent as a float."""
    return _encoder.encode((float(unix_s), events, dp_rank))


def encode_seq(seq: int) -> bytes:
    """The second frame of a message."""
    return seq.to_bytes(8, "big")
