"""The mock engine's own block hashes.

An engine's hashes are opaque: readers may only resolve parents and removals with them. They must
never equal kvatlas's sequence hashes of the same tokens; otherwise a reader that confuses the two
would pass every test. So every chunk hash is salted with this engine's seed. The chain is computed
like ours, by one native call for a whole prompt.
"""

from array import array
from dataclasses import dataclass

import numpy as np

from kvatlas_hashing import chunk_hashes, sequence_hashes


@dataclass(frozen=True, slots=True)
class HashKey:
    """The inputs of a block hash besides the tokens."""

    lora_name: str | None = None
    lora_id: int | None = None
    cache_salt: str | None = None

    def extra_keys(self, first: int, end: int) -> list[list[str] | None]:
        """The extra keys in vLLM's events for the blocks `first` to `end` of a request.

        Every block has the adapter's name; only block 0 has the salt.
        """
        name = [self.lora_name] if self.lora_name else []
        keys: list[list[str] | None] = [name or None] * (end - first)
        if first == 0 and self.cache_salt:
            keys[0] = [*name, self.cache_salt]
        return keys


class BlockHasher:
    """Hashes the full blocks of requests as u64; equal seeds give equal hashes."""

    def __init__(self, *, seed: str, block_size: int) -> None:
        self._seed = seed
        self._block_size = block_size

    def extend(self, hashes: list[int], tokens: "array[int]", key: HashKey) -> None:
        """Append to `hashes` the missing hashes of the full blocks of `tokens`."""
        size = self._block_size
        known = len(hashes)
        full = len(tokens) // size
        if full <= known:
            return
        fresh = np.frombuffer(tokens, dtype=np.uint32)[known * size : full * size]
        salt = f"{self._seed}\0{key.cache_salt or ''}"
        chunks = chunk_hashes(fresh, size, lora_name=key.lora_name, cache_salt=salt)
        del fresh  # an array cannot grow while a view of it exists
        if known:
            parent = np.array([hashes[-1]], dtype=np.uint64)
            hashes.extend(sequence_hashes(np.concatenate((parent, chunks)))[1:].tolist())
        else:
            hashes.extend(sequence_hashes(chunks).tolist())
