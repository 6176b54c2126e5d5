"""A long prompt is hashed without the GIL."""

import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from kvatlas_hashing import chunk_hashes, sequence_hashes

TOKENS = np.zeros(4_000_000, np.uint32)
CHUNKS = np.zeros(2_000_000, np.uint64)
TRIES = 200


@pytest.mark.parametrize(
    "work",
    [lambda: chunk_hashes(TOKENS, 16), lambda: sequence_hashes(CHUNKS)],
    ids=["chunk_hashes", "sequence_hashes"],
)
def test_long_work_releases_the_gil(work: Callable[[], object]) -> None:
    """Without forced switches, another thread can only run while the work has given up the GIL."""
    gate = threading.Lock()
    ran: list[bool] = []

    def wait_and_run() -> None:
        with gate:
            ran.append(True)

    interval_s = sys.getswitchinterval()
    gate.acquire()
    thread = threading.Thread(target=wait_and_run)
    thread.start()
    sys.setswitchinterval(1_000)
    try:
        gate.release()
        for _ in range(TRIES):
            work()
            if ran:
                break
        ran_meanwhile = bool(ran)
    finally:
        sys.setswitchinterval(interval_s)
        thread.join()
    assert ran_meanwhile
