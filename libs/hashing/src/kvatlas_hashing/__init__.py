"""The hash contract: chunk hashes and sequence hashes of token prompts.

`kvatlas_hashing.reference` is the specification; the functions here compute the same natively.
"""

from kvatlas_hashing.native import chunk_hashes, sequence_hashes
from kvatlas_hashing.reference import BASE_SEED, CONTRACT, item_hash, seed

__all__ = [
    "BASE_SEED",
    "CONTRACT",
    "chunk_hashes",
    "item_hash",
    "seed",
    "sequence_hashes",
]
