"""When free memory goes back to the system."""

import mmap

from kvatlas_frontend.memory import TrimPolicy, resident_bytes

MIB = 1 << 20


def test_a_burst_that_is_over_is_trimmed_once() -> None:
    policy = TrimPolicy(200 * MIB)
    assert not policy.is_due(400 * MIB, 1_000)
    assert not policy.is_due(400 * MIB, 600)
    assert policy.is_due(400 * MIB, 250)
    policy.trimmed(205 * MIB)
    assert not policy.is_due(210 * MIB, 0)


def test_a_steady_load_is_left_alone() -> None:
    policy = TrimPolicy(200 * MIB)
    assert not any(policy.is_due(400 * MIB, in_flight) for in_flight in (30, 40, 30, 35))


def test_memory_in_use_is_not_trimmed_again() -> None:
    policy = TrimPolicy(200 * MIB)
    assert policy.is_due(300 * MIB, 0)
    policy.trimmed(290 * MIB)  # it was in use
    assert not policy.is_due(300 * MIB, 0)
    assert policy.is_due(330 * MIB, 0)


def test_resident_memory_is_that_of_this_process() -> None:
    before = resident_bytes()
    with mmap.mmap(-1, 64 * MIB) as memory:
        for page in range(0, 64 * MIB, 4096):
            memory[page] = 1
        assert 56 * MIB < resident_bytes() - before < 72 * MIB
