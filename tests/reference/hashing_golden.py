"""Writes the golden vectors of the hash contract from the reference, or compares them with it.

`python -m tests.reference.hashing_golden` writes `libs/hashing/golden.json`; `--check` compares. The
file ties the three implementations together: the reference writes it, and the tests of the Rust crate
and of the Python package reproduce it.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvatlas_hashing import reference

FILE = Path(__file__).parents[2] / "libs" / "hashing" / "golden.json"
TOKEN_MAX = 2**32 - 1
TOKEN_COUNT = 1_100
# Each length class of XXH3 (1-3 bytes cannot occur; 4-8, 9-16, 17-128, 129-240, longer), both sides
# of its borders, the common block sizes, and more than one 1,024-byte round of the long form.
BLOCK_SIZES = (1, 2, 3, 4, 5, 8, 16, 24, 32, 33, 48, 60, 61, 64, 100, 128, 256, 257, 300, 512, 1100)
BLOCKS = 5  # and half a block that has no hash, where there are tokens enough
NAMES = (("", ""), ("adapter-a", ""), ("", "tenant-1"), ("adapter-a", "tenant-1"), ("ß𝄞", "ß𝄞"))
IDENTIFIERS = ("", "a", "image-0", "0f" * 32, "画像")

Json = Mapping[str, object]


def golden() -> Json:
    """All vectors, as they are written to the file."""
    tokens = _tokens(random.Random(1337))
    cases = [
        _case(tokens[: size * BLOCKS + size // 2], size, *NAMES[0], {}) for size in BLOCK_SIZES
    ]
    cases += [_case(tokens[:70], 16, lora, salt, {}) for lora, salt in NAMES[1:]]
    cases += [
        _case(tokens[:70], 16, "", "", {0: ["image-0"]}),
        _case(tokens[:70], 16, "", "", {1: ["b", "a", "c"], 3: ["a", "a"]}),
        _case(tokens[:70], 16, "adapter-a", "tenant-1", {2: ["画像", ""]}),
        _case(tokens[:1030], 512, "", "tenant-1", {1: ["0f" * 32]}),
    ]
    return {
        "contract": reference.CONTRACT,
        "seeds": [
            {"lora_name": lora, "cache_salt": salt, "seed": reference.seed(lora, salt)}
            for lora, salt in NAMES
        ],
        "items": [
            {"identifier": identifier, "hash": reference.item_hash(identifier)}
            for identifier in IDENTIFIERS
        ],
        "steps": [
            {"parent": parent, "chunk": chunk, "hash": reference.sequence_step(parent, chunk)}
            for parent in (0, 1, 2**64 - 1)
            for chunk in (0, 1, 2**64 - 1)
        ],
        "tokens": tokens,
        "cases": cases,
    }


def _tokens(rng: random.Random) -> list[int]:
    """Mostly ids of a vocabulary, some from the whole range, and both ends of it."""
    tokens = [
        rng.randrange(150_000) if rng.random() < 0.9 else rng.randrange(TOKEN_MAX + 1)
        for _ in range(TOKEN_COUNT)
    ]
    tokens[7], tokens[8], tokens[20:24] = 0, TOKEN_MAX, [0, 0, 0, 0]
    return tokens


def _case(
    tokens: Sequence[int],
    block_size: int,
    lora_name: str,
    cache_salt: str,
    identifiers: Mapping[int, Sequence[str]],
) -> Json:
    blocks = len(tokens) // block_size
    items = [
        [reference.item_hash(name) for name in identifiers[block]] if block in identifiers else None
        for block in range(blocks)
    ]
    chunks = reference.chunk_hashes(
        tokens,
        block_size,
        lora_name=lora_name,
        cache_salt=cache_salt,
        item_hashes=items if identifiers else None,
    )
    return {
        "token_count": len(tokens),
        "block_size": block_size,
        "lora_name": lora_name,
        "cache_salt": cache_salt,
        "item_hashes": items if identifiers else None,
        "chunk_hashes": chunks,
        "sequence_hashes": reference.sequence_hashes(chunks),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file; with `--check`, exit 1 if it differs from what the reference computes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if different")
    arguments = parser.parse_args(argv)
    text = json.dumps(golden(), separators=(",", ":")) + "\n"
    # One case a line, so that a change shows where it is.
    text = text.replace('},{"', '},\n{"').replace('"cases":[', '"cases":[\n')
    if not arguments.check:
        FILE.write_text(text)
        return 0
    if FILE.read_text() != text:
        sys.stderr.write(f"{FILE.name} differs from what the reference computes\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
