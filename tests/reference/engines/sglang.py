"""The specification of SGLang's reader; `libs/engines/rust/src/sglang.rs` explains the format."""

from collections.abc import Sequence

from kvatlas_engines import RefusalReason
from tests.reference.engines import fields as f
from tests.reference.engines.events import EngineEvent, Removed, Stored, StoredByHash
from tests.reference.engines.fields import NotIndexable
from tests.reference.engines.payload import FieldOrder, MalformedEvent, RawEvent
from tests.reference.engines.reader import read_cleared, read_guarded, unknown_event

_ORDER: FieldOrder = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "cache_salt",
        "session_id",
        "lora_name",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
_CACHE_SALT_POSITION = 6


class SglangReader:
    """Reads one SGLang engine's events; see `EngineReader`."""

    order = _ORDER

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
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
                return [Removed(f.block_hashes(event.fields), f.tier(event.fields))]
            case "AllBlocksCleared":
                return read_cleared(event)
            case _:
                raise unknown_event(event)

    def _read_stored(self, event: RawEvent) -> list[EngineEvent]:
        fields = event.fields
        hashes = f.block_hashes(fields)
        tokens = f.token_list(fields)
        size = f.block_size(fields)
        tier = f.tier(fields)
        if not hashes and not tokens:
            return []
        if not tokens:
            return [StoredByHash(hashes, tier)]
        if size != self._block_size:
            raise NotIndexable(
                RefusalReason.WRONG_BLOCK_SIZE,
                f"pages of {size} tokens; {self._block_size} are configured",
                block_size=size,
            )
        if event.positions is not None and event.positions <= _CACHE_SALT_POSITION:
            self.blind_spots |= {"adapters", "cache salts"}
        lora_name = f.optional_text(fields, "lora_name")
        if lora_name is None and fields.get("lora_id") is not None:
            raise NotIndexable(RefusalReason.LORA_ID_WITHOUT_NAME, f"{fields['lora_id']!r:.32}")
        plain = f.bigrams_u32(tokens) if type(tokens[0]) is list else f.tokens_u32(tokens)
        return [
            Stored(
                hashes,
                f.parent_hash(fields),
                f.in_blocks(plain, len(hashes), size),
                tier,
                lora_name,
                f.optional_text(fields, "cache_salt"),
            )
        ]
