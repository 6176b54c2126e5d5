"""The specification of vLLM's reader; `libs/engines/rust/src/vllm.rs` explains the format."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kvatlas_engines import RefusalReason
from kvatlas_events import Tier
from tests.reference.engines import fields as f
from tests.reference.engines.cache_groups import GroupFilter
from tests.reference.engines.events import (
    Cleared,
    EngineEvent,
    EngineHash,
    Removed,
    Stored,
    StoredByHash,
    Unindexable,
)
from tests.reference.engines.extra_keys import NO_KEYS, BlockKeys, read_block_keys
from tests.reference.engines.fields import NotIndexable
from tests.reference.engines.payload import FieldOrder, MalformedEvent, RawEvent
from tests.reference.engines.reader import (
    announced_blocks,
    read_cleared,
    read_guarded,
    unknown_event,
)

_ORDER: FieldOrder = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_EXTRA_KEYS_POSITION = 7


class VllmReader:
    """Reads one vLLM engine's events; see `EngineReader`."""

    order = _ORDER

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._groups = GroupFilter()
        self.blind_spots: frozenset[str] = frozenset()

    def read(self, events: Sequence[RawEvent | MalformedEvent]) -> list[EngineEvent]:
        """Translate a batch's events, in order."""
        read: list[EngineEvent] = []
        for event in events:
            read.extend(read_guarded(event, self._read_event))
        return read

    def _read_event(self, event: RawEvent) -> list[EngineEvent]:
        match event.kind:
            case "BlockStored":
                return self._read_stored(event)
            case "BlockRemoved":
                self._groups.admit_hash_only(f.optional_number(event.fields, "group_idx"))
                return [Removed(f.block_hashes(event.fields), f.tier(event.fields))]
            case "AllBlocksCleared":
                return read_cleared(event)
            case _:
                raise unknown_event(event)

    def _read_stored(self, event: RawEvent) -> list[EngineEvent]:
        fields = event.fields
        hashes = f.block_hashes(fields)
        group = f.optional_number(fields, "group_idx")
        tokens = f.token_list(fields)
        size = f.block_size(fields)
        tier = f.tier(fields)
        if not hashes and not tokens:
            return []
        if not tokens:
            self._groups.admit_hash_only(group)
            return [StoredByHash(hashes, tier)]
        replaced = self._groups.admit_store(group, f.optional_text(fields, "kv_cache_spec_kind"))
        if not replaced:
            return self._read_blocks(event, hashes, tokens, size, tier)
        # The blocks of the other group no longer count, even if this event is refused below.
        read = partial(self._read_blocks, hashes=hashes, tokens=tokens, size=size, tier=tier)
        return [Cleared(None), *read_guarded(event, read)]

    def _read_blocks(
        self,
        event: RawEvent,
        hashes: tuple[EngineHash, ...],
        tokens: list[object],
        size: int,
        tier: Tier,
    ) -> list[EngineEvent]:
        fields = event.fields
        if size != self._block_size:
            raise NotIndexable(
                RefusalReason.WRONG_BLOCK_SIZE,
                f"blocks of {size} tokens; {self._block_size} are configured",
                block_size=size,
            )
        lora_name = self._lora_name(event)
        parent = f.parent_hash(fields)
        blocks = f.in_blocks(f.tokens_u32(tokens), len(hashes), size)
        read: list[EngineEvent] = []
        keys, refusal = _read_keys(fields.get("extra_keys"), len(hashes), lora_name, parent is None)
        if keys:
            read.append(
                Stored(
                    hashes[: len(keys)],
                    parent,
                    _head(blocks, len(keys)),
                    tier,
                    lora_name,
                    keys[0].cache_salt,
                    tuple(key.items for key in keys) if any(key.items for key in keys) else None,
                )
            )
        if refusal is not None:
            read.append(
                Unindexable(refusal.reason, announced_blocks(event) - len(keys), str(refusal))
            )
        return read

    def _lora_name(self, event: RawEvent) -> str | None:
        if event.positions is not None and event.positions <= _EXTRA_KEYS_POSITION:
            self.blind_spots |= {"cache salts", "multimodal items"}
        name = f.optional_text(event.fields, "lora_name")
        if name is None and event.fields.get("lora_id") is not None:
            raise NotIndexable(
                RefusalReason.LORA_ID_WITHOUT_NAME, f"{event.fields['lora_id']!r:.32}"
            )
        return name


def _read_keys(
    extra_keys: object,
    blocks: int,
    lora_name: str | None,
    begins_prompt: bool,
) -> tuple[list[BlockKeys], NotIndexable | None]:
    """Understand the keys of a chain's blocks, up to the first block that cannot be indexed.

    The blocks before it are indexed like any other prefix.
    """
    if extra_keys is None or extra_keys == []:
        return [NO_KEYS] * blocks, None
    if not isinstance(extra_keys, list):
        raise f.malformed(f"extra_keys of type {type(extra_keys).__name__}")
    listed = cast("list[object]", extra_keys)
    if len(listed) != blocks:
        raise NotIndexable(
            RefusalReason.LENGTH_MISMATCH, f"extra keys of {len(listed)} blocks for {blocks} blocks"
        )
    keys: list[BlockKeys] = []
    for index, of_block in enumerate(listed):
        first = begins_prompt and index == 0
        try:
            keys.append(read_block_keys(of_block, lora_name=lora_name, first_of_prompt=first))
        except NotIndexable as refusal:
            return keys, refusal
    return keys, None


def _head(blocks: NDArray[np.uint32], count: int) -> NDArray[np.uint32]:
    return blocks if count == len(blocks) else blocks[:count]
