"""The hash contract `xxh3-1337-v1`: the specification in pure Python.

It is simple and slow; `kvatlas_native` and the Rust crate must agree with it on every input.

1.  A token is an unsigned 32-bit integer. A prompt is cut into full blocks of `block_size` tokens;
    the partial tail has no hash.
2.  The seed of a prompt's chunk hashes is 1337, plus XXH3-64 (seed 0) of the LoRA adapter's name in
    UTF-8 if it has one, plus XXH3-64 (seed 1) of the cache salt in UTF-8 if it has one, modulo 2^64.
    An empty name or salt means none: engines publish and accept `""` for "no salt". So prompts of
    different adapters or salts never match each other, and no table per adapter is needed.
3.  The chunk hash of a block is XXH3-64, with that seed, over the block's tokens as little-endian
    u32; if the block holds multimodal items, their 64-bit hashes follow, sorted ascending, as
    little-endian u64. An item's hash is XXH3-64 (seed 0) of the engine's identifier of it in UTF-8.
    A block without items and a block with an empty list of them are the same.
4.  The sequence hash of the first block is its chunk hash. Every later one is XXH3-64, seed 1337,
    over the previous sequence hash and the block's chunk hash, each as little-endian u64. It stands
    for the whole prefix. Adapter and salt do not enter again: the chunk hashes carry them.

Any 64-bit value is a legal hash, 0 too. The definitions are those of NVIDIA Dynamo's router.
"""

from collections.abc import Iterable, Sequence

from xxhash import xxh3_64_intdigest

CONTRACT = "xxh3-1337-v1"
BASE_SEED = 1337
ITEM_SEED = 0
LORA_SEED = 0
SALT_SEED = 1
MASK_64 = 2**64 - 1


def seed(lora_name: str | None = None, cache_salt: str | None = None) -> int:
    """Return the seed of the chunk hashes of a prompt with this adapter and salt; `""` means none."""
    total = BASE_SEED
    if lora_name:
        total += xxh3_64_intdigest(lora_name.encode(), LORA_SEED)
    if cache_salt:
        total += xxh3_64_intdigest(cache_salt.encode(), SALT_SEED)
    return total & MASK_64


def item_hash(identifier: str) -> int:
    """Return the hash of a multimodal item from the engine's identifier of it."""
    return xxh3_64_intdigest(identifier.encode(), ITEM_SEED)


def chunk_hash(tokens: Iterable[int], seed: int, items: Iterable[int] = ()) -> int:
    """Return the hash of one block of tokens and its items, which may be in any order."""
    data = b"".join(token.to_bytes(4, "little") for token in tokens)
    data += b"".join(item.to_bytes(8, "little") for item in sorted(items))
    return xxh3_64_intdigest(data, seed)


def chunk_hashes(
    tokens: Sequence[int],
    block_size: int,
    *,
    lora_name: str | None = None,
    cache_salt: str | None = None,
    item_hashes: Sequence[Sequence[int] | None] | None = None,
) -> list[int]:
    """Return the chunk hash of every full block; `item_hashes`: one entry per full block, or None."""
    blocks = len(tokens) // block_size
    items = item_hashes if item_hashes is not None else [None] * blocks
    prompt_seed = seed(lora_name, cache_salt)
    return [
        chunk_hash(tokens[start : start + block_size], prompt_seed, block_items or ())
        for start, block_items in zip(range(0, blocks * block_size, block_size), items, strict=True)
    ]


def sequence_step(parent: int, chunk: int) -> int:
    """Return the sequence hash of a prefix from its parent's and its last block's chunk hash."""
    return xxh3_64_intdigest(parent.to_bytes(8, "little") + chunk.to_bytes(8, "little"), BASE_SEED)


def sequence_hashes(chunks: Sequence[int]) -> list[int]:
    """Return the sequence hash of every prefix of full blocks."""
    hashes: list[int] = []
    for chunk in chunks:
        hashes.append(sequence_step(hashes[-1], chunk) if hashes else chunk)
    return hashes
