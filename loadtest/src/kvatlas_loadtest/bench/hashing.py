"""Hashing a prompt: against plain XXH3 over the same bytes, and the cost of a step of the chain.

Plain XXH3 hashes the whole buffer to one value; ours hashes block by block and gives a value for
each. It is measured twice: through our own binding, as one block as long as the prompt, and with
the PyPI package `xxhash`, which picks the widest vector instructions that the processor has.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import xxhash

from kvatlas_hashing import chunk_hashes, sequence_hashes
from kvatlas_hashing.reference import BASE_SEED
from kvatlas_loadtest.bench.rows import Medians, Row

TOKENS = 65_536
BLOCK_SIZES = (16, 64, 512)
RATIO_TARGET = 0.8
STEP_NS_TARGET = 5.0


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Chunk hashes against plain XXH3, and steps of the sequence hash."""
    rounds = 3 if quick else 200
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 1 << 32, TOKENS, dtype=np.uint32)
    chunks = chunk_hashes(tokens, BLOCK_SIZES[0])
    work: dict[str, Callable[[], object]] = {
        "plain, own binding": partial(chunk_hashes, tokens, TOKENS),
        "plain, PyPI xxhash": partial(xxhash.xxh3_64_intdigest, tokens.data, seed=BASE_SEED),
        "chain": partial(sequence_hashes, chunks),
        **{str(size): partial(chunk_hashes, tokens, size) for size in BLOCK_SIZES},
    }
    seconds = Medians()
    for _ in range(rounds):
        for name, call in work.items():
            start = time.perf_counter_ns()
            call()
            seconds.add(name, (time.perf_counter_ns() - start) / 1e9)
    return _rows(seconds, tokens.nbytes, len(chunks))


def _rows(seconds: Medians, size_bytes: int, steps: int) -> list[Row]:
    plain = ("plain, own binding", "plain, PyPI xxhash")
    settings = {"tokens": TOKENS}
    rows = [
        Row("hashing", name, size_bytes / seconds[name] / 1e9, "GB/s", settings=settings)
        for name in plain
    ]
    for size in BLOCK_SIZES:
        speed = size_bytes / seconds[str(size)] / 1e9
        here = settings | {"block_size": size}
        rows.append(Row("hashing", "chunk hashes", speed, "GB/s", settings=here))
        rows += [
            Row(
                "hashing",
                f"chunk hashes / {name}",
                seconds[name] / seconds[str(size)],
                "ratio",
                RATIO_TARGET if name == plain[0] else None,
                "higher",
                here,
            )
            for name in plain
        ]
    step_ns = seconds["chain"] / steps * 1e9
    rows.append(
        Row(
            "hashing",
            "sequence hash step",
            step_ns,
            "ns",
            STEP_NS_TARGET,
            settings={"steps": steps},
        )
    )
    return rows
