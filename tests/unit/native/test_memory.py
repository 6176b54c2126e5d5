"""The memory that mirrors share: pages that one uses are counted, and free when it is gone."""

from kvatlas_native import EngineMirror, MirrorMemory
from tests.reference import wire_events as wire

BLOCKS = 20_000
BYTES_PER_BLOCK = 80


def filled(memory: MirrorMemory) -> EngineMirror:
    mirror = EngineMirror(engine="vllm", block_size=1, blocks_max=BLOCKS, memory=memory)
    mirror.apply_payloads([wire.payload(wire.stored(range(BLOCKS), range(BLOCKS)))], 0)
    return mirror


def test_mirrors_use_the_memory_that_they_are_given_and_free_it() -> None:
    memory = MirrorMemory()
    assert (memory.used_bytes, memory.idle_bytes) == (0, 0)
    first = filled(memory)
    one = memory.used_bytes
    assert BLOCKS * BYTES_PER_BLOCK < one <= first.memory_bytes
    state = first.export_state().tobytes()
    restored = EngineMirror(
        engine="vllm", block_size=1, blocks_max=BLOCKS, memory=memory, state=state
    )
    assert restored.published_digests() == first.published_digests()
    assert memory.used_bytes == 2 * one
    del first
    assert memory.used_bytes == one
    del restored
    assert memory.used_bytes == 0


def test_a_mirror_outlives_the_memory_that_it_was_given() -> None:
    mirror = filled(MirrorMemory())
    digest = mirror.published_digests()[0]
    mirror.suspect_all()
    mirror.apply_payloads([wire.payload(wire.cleared())], 0)
    assert digest[0] == BLOCKS
    assert mirror.held_blocks == 0
