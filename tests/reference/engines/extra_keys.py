"""The specification of `extra_keys`; `libs/engines/rust/src/vllm/extra_keys.rs` explains the field."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from kvatlas_engines import RefusalReason
from kvatlas_hashing import item_hash
from tests.reference.engines.fields import NotIndexable, malformed


@dataclass(frozen=True, slots=True)
class BlockKeys:
    """The extra keys of one block, understood."""

    cache_salt: str | None = None
    items: tuple[int, ...] = ()


NO_KEYS = BlockKeys()


def read_block_keys(keys: object, *, lora_name: str | None, first_of_prompt: bool) -> BlockKeys:
    """Understand one block's keys.

    Raises:
        NotIndexable: embeds, or keys of a kind that this build does not know.
    """
    if keys is None:
        return NO_KEYS
    if not isinstance(keys, list):
        raise malformed(f"extra keys of type {type(keys).__name__}")
    rest = cast("Sequence[object]", keys)
    if lora_name is not None and rest and rest[0] == lora_name:
        rest = rest[1:]
    salt: str | None = None
    items: list[int] = []
    for key in rest:
        match key:
            case "":
                continue
            case str() if not first_of_prompt:
                items.append(item_hash(key))
            case str() if salt is None:
                salt = key
            case [str() as identifier, int()]:
                items.append(item_hash(identifier))
            case bytes():
                raise NotIndexable(RefusalReason.EMBEDS, "prompt embeddings")
            case _:
                raise NotIndexable(
                    RefusalReason.UNKNOWN_EXTRA_KEYS, f"an extra key of type {type(key).__name__}"
                )
    return BlockKeys(salt, tuple(items))
