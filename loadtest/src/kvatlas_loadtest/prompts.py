"""Makes prompts for a trace without text: token ids from its hash ids and a seed.

Each hash id always becomes the same tokens, so two prompts share exactly the prefix that they share
in the trace. To play long prompts on few cores, an id can stand for fewer tokens than in the trace:
all lengths shrink by the same factor, and the sharing stays.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvatlas_loadtest.trace import TOKENS_PER_ID, TraceRow

VOCABULARY = (1_000, 33_000)
"""First token id, and one past the last: within every current vocabulary, without special tokens."""

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX_1 = np.uint64(0xBF58_476D_1CE4_E5B9)
_MIX_2 = np.uint64(0x94D0_49BB_1331_11EB)


def prompt_tokens(row: TraceRow, *, tokens_per_id: int, seed: int) -> NDArray[np.uint32]:
    """The prompt of a request, with `tokens_per_id` tokens for every full id.

    The last id gives its share of tokens, rounded up, so that no prompt is empty. Tokens are
    SplitMix64 of (seed, id, position). A prompt of 100,000 tokens takes a millisecond.
    """
    ids = np.array(row.hash_ids, dtype=np.uint64)
    positions = np.arange(tokens_per_id, dtype=np.uint64)
    counters = ids[:, None] * np.uint64(TOKENS_PER_ID) + positions[None, :]
    start = np.uint64(seed * int(_MIX_2) % (1 << 64))
    mixed = _splitmix(counters.reshape(-1) * _GOLDEN + start)
    low, high = VOCABULARY
    tokens = np.uint64(low) + (mixed >> np.uint64(32)) % np.uint64(high - low)
    return tokens[: scaled_length(row, tokens_per_id=tokens_per_id)].astype(np.uint32)


def scaled_length(row: TraceRow, *, tokens_per_id: int) -> int:
    """Length of the request's prompt if an id stands for `tokens_per_id` tokens."""
    ids_full, rest = divmod(row.input_tokens, TOKENS_PER_ID)
    return ids_full * tokens_per_id + -(-rest * tokens_per_id // TOKENS_PER_ID)


def tokens_per_id_for(rows: Sequence[TraceRow], *, block_size: int, prompt_tokens_mean: int) -> int:
    """The largest power-of-two share of an id whose mean prompt is at most `prompt_tokens_mean`.

    Never less than a block per id, because then prompts would share less than in the trace.
    """
    tokens_per_id = TOKENS_PER_ID
    while tokens_per_id // 2 >= block_size:
        total = sum(scaled_length(row, tokens_per_id=tokens_per_id) for row in rows)
        if total <= prompt_tokens_mean * len(rows):
            break
        tokens_per_id //= 2
    return tokens_per_id


def _splitmix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
