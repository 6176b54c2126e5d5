"""Hashing a prompt: speed compared with plain XXH3, and the cost of a step of the chain.

The native generator compares within one process and one build: the contract's hashes with plain
XXH3 over each block, which is the same work, and with one pass of XXH3 over the whole buffer, which
gives one value instead of one per block. The Python binding is measured too.
"""

import json
import subprocess
import time

import numpy as np

from kvatlas_hashing import chunk_hashes, sequence_hashes
from kvatlas_loadtest.bench.loadgen import find_program
from kvatlas_loadtest.bench.rows import Medians, Row

TOKENS = 65_536
BLOCK_SIZES = (16, 64, 512)
RATIO_TARGET = 0.8
STEP_NS_TARGET = 5.0
_NAME = "hashing"


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """Hashing: chunk hashes compared with plain XXH3, and steps of the sequence hash."""
    rounds = 3 if quick else 300
    program = find_program(quick=quick)
    printed = subprocess.run(  # noqa: S603 - our own program
        [program, "hashing", "--rounds", str(rounds)], check=True, capture_output=True
    ).stdout
    return native_rows(printed) + _python_rows(rounds)


def native_rows(printed: bytes) -> list[Row]:
    """Turn the generator's line into rows."""
    measured = json.loads(printed)
    size_bytes: int = measured["bytes"]
    one_pass_s: float = measured["one_pass_s"]
    plain = Row(_NAME, "plain XXH3, one pass", size_bytes / one_pass_s / 1e9, "GB/s")
    rows = [plain]
    for block in measured["blocks"]:
        settings = {"block_size": block["block_size"]}
        ours_s: float = block["ours_s"]
        rows += [
            Row(_NAME, "chunk hashes", size_bytes / ours_s / 1e9, "GB/s", settings=settings),
            Row(
                _NAME,
                "chunk hashes / plain XXH3 of each block",
                block["plain_s"] / ours_s,
                "ratio",
                RATIO_TARGET,
                "higher",
                settings,
            ),
            Row(
                _NAME,
                "chunk hashes / plain XXH3 in one pass",
                one_pass_s / ours_s,
                "ratio",
                RATIO_TARGET,
                "higher",
                settings,
            ),
        ]
    step_ns: float = measured["chain_step_ns"]
    return [*rows, Row(_NAME, "sequence hash step", step_ns, "ns", STEP_NS_TARGET)]


def _python_rows(rounds: int) -> list[Row]:
    """Measure the same through the Python binding, with the allocation of the result."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 1 << 32, TOKENS, dtype=np.uint32)
    chunks = chunk_hashes(tokens, BLOCK_SIZES[0])
    seconds = Medians()
    for _ in range(rounds):
        for size in BLOCK_SIZES:
            start = time.perf_counter_ns()
            chunk_hashes(tokens, size)
            seconds.add(str(size), (time.perf_counter_ns() - start) / 1e9)
        start = time.perf_counter_ns()
        sequence_hashes(chunks)
        seconds.add("chain", (time.perf_counter_ns() - start) / 1e9)
    rows = [
        Row(
            _NAME,
            "chunk hashes from Python",
            tokens.nbytes / seconds[str(size)] / 1e9,
            "GB/s",
            settings={"block_size": size, "tokens": TOKENS},
        )
        for size in BLOCK_SIZES
    ]
    step_ns = seconds["chain"] / len(chunks) * 1e9
    settings = {"steps": len(chunks)}
    return [*rows, Row(_NAME, "sequence hash step from Python", step_ns, "ns", settings=settings)]
