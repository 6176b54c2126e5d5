"""What beside its tokens makes a vLLM block the block it is.

`extra_keys` holds per block null or an array, in this order: the LoRA name; `[identifier, offset]`
of every multimodal item that overlaps the block; the cache salt, a bare string, in a prompt's first
block only; digests of prompt embeddings, as bytes. So the salt is the bare string of the first
block that is left after the LoRA name. Releases 0.24 to 0.30 have been seen to name an item by its
bare identifier: after the first block a bare string is an item. In the first block such an item
cannot be told from a salt; two bare strings there are refused rather than guessed. `""` is nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from kvatlas_engines.events import Reason
from kvatlas_engines.fields import NotIndexable, malformed
from kvatlas_hashing import item_hash


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
                raise NotIndexable(Reason.EMBEDS, "prompt embeddings")
            case _:
                raise NotIndexable(
                    Reason.UNKNOWN_EXTRA_KEYS, f"an extra key of type {type(key).__name__}"
                )
    return BlockKeys(salt, tuple(items))
