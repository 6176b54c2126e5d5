"""Memory that mirrors share: what one takes is counted, and is back when it goes."""

import numpy as np

from kvatlas_native import EngineMirror, Memory

BLOCKS = 20_000
BYTES_PER_BLOCK = 80


def filled(memory: Memory) -> EngineMirror:
    mirror = EngineMirror(engine="vllm", block_size=1, blocks_max=BLOCKS, memory=memory)
    tokens = np.arange(BLOCKS, dtype=np.uint32)
    mirror.stored(range(BLOCKS), None, tokens, 0, lora_name=None, cache_salt=None, items=None)
    mirror.apply()
    return mirror


def test_mirrors_lie_in_the_memory_that_they_are_given_and_leave_it() -> None:
    memory = Memory()
    assert (memory.used_bytes, memory.idle_bytes) == (0, 0)
    first = filled(memory)
    one = memory.used_bytes
    assert BLOCKS * BYTES_PER_BLOCK < one <= first.memory_bytes
    state = first.export_state().tobytes()
    restored = EngineMirror.import_state(
        state, engine="vllm", block_size=1, blocks_max=BLOCKS, memory=memory
    )
    assert restored.digests() == first.digests()
    assert memory.used_bytes == 2 * one
    del first
    assert memory.used_bytes == one
    del restored
    assert memory.used_bytes == 0


def test_a_mirror_outlives_the_memory_that_it_was_given() -> None:
    mirror = filled(Memory())
    digest = mirror.digests()[0]
    mirror.suspect_all()
    mirror.cleared(None)
    mirror.apply()
    assert digest[0] == BLOCKS
    assert mirror.held_blocks == 0
