"""Makes the payloads that engines send: steps of requests that store new blocks.

A message is one step of an engine, in the format of vLLM 0.33. In a step of prefill one request
stores a run of blocks; in a step of decoding many requests store a block each, the next of its own
prompt.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvatlas_loadtest.bench.cell import BLOCK_SIZE

PROMPT_BLOCKS = 128
"""Blocks of a request; then another request takes its place."""
_VOCABULARY = 129_280
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Shape:
    """How blocks are cut into events and messages.

    Attributes:
        blocks_an_event: a divisor of `PROMPT_BLOCKS`.
        events_a_message: requests that store in one step, each in an event of its own.
    """

    blocks_an_event: int
    events_a_message: int

    @property
    def blocks_a_message(self) -> int:
        """Blocks that one message stores."""
        return self.blocks_an_event * self.events_a_message

    def whole_messages(self, blocks: int) -> int:
        """The messages of about so many blocks, all prompts whole."""
        a_generation = PROMPT_BLOCKS // self.blocks_an_event
        prompts = max(1, round(blocks / (self.blocks_a_message * a_generation)))
        return prompts * a_generation


class Requests:
    """One engine's requests, in step; makes its next messages.

    Attributes:
        last_prompt: the tokens of the last request of the newest message, so far.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        self._shape = shape
        self._rng = np.random.default_rng(seed)
        self.last_prompt: NDArray[np.uint32] = np.empty(0, dtype=np.uint32)

    def messages(self, count: int) -> Iterator[bytes]:
        """Payloads of the next steps; `count` is of whole prompts, see `Shape.whole_messages`."""
        steps = PROMPT_BLOCKS // self._shape.blocks_an_event
        for _ in range(count // steps):
            yield from self._generation(steps)

    def _generation(self, steps: int) -> Iterator[bytes]:
        """Every request from its first block to its last."""
        requests, blocks = self._shape.events_a_message, self._shape.blocks_an_event
        tokens = self._rng.integers(
            _VOCABULARY, size=(requests, steps, blocks * BLOCK_SIZE), dtype=np.uint32
        )
        hashes = self._rng.integers(2**64, size=(requests, steps, blocks), dtype=np.uint64)
        self.last_prompt = tokens[-1].reshape(-1)
        for step in range(steps):
            events = [
                _stored(
                    hashes[request, step].tolist(),
                    int(hashes[request, step - 1, -1]) if step else None,
                    tokens[request, step].tolist(),
                )
                for request in range(requests)
            ]
            yield _ENCODER.encode([1_763_700_000.5, events, 0])


def _stored(hashes: list[int], parent: int | None, tokens: list[int]) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK_SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
