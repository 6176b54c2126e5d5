"""Gives memory that a burst of requests has left free back to the system.

glibc keeps freed memory for later allocations: after a thousand streams a frontend would stay as
large as it was among them. `malloc_trim` returns it, but takes milliseconds and lets allocations
wait, so it runs when the burst is over.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_GROWTH: Final = 1.1  # a smaller growth is not worth a trim
_QUIET_SHARE: Final = 0.25  # of the most requests in flight since the last trim

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Return free memory to the system. Does nothing where the C library cannot."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if malloc_trim is not None:
        malloc_trim(0)


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class TrimPolicy:
    """Decides when a trim is worth its time."""

    def __init__(self, resident_bytes: int) -> None:
        """`resident_bytes`: after the last trim."""
        self._floor_bytes = resident_bytes
        self._peak = 0

    def is_due(self, resident_bytes: int, in_flight: int) -> bool:
        """Take in an observation; whether a burst is over and has left memory behind."""
        self._peak = max(self._peak, in_flight)
        is_quiet = in_flight <= self._peak * _QUIET_SHARE
        return is_quiet and resident_bytes > self._floor_bytes * _GROWTH

    def trimmed(self, resident_bytes: int) -> None:
        """Start anew from what a trim has left."""
        self._floor_bytes = resident_bytes
        self._peak = 0


async def trim_after_bursts(in_flight: Callable[[], int], *, interval_s: float) -> None:
    """Look every `interval_s` seconds whether a trim is due, for ever."""
    policy = TrimPolicy(resident_bytes())
    while True:
        await asyncio.sleep(interval_s)
        if policy.is_due(resident_bytes(), in_flight()):
            await asyncio.to_thread(trim)
            policy.trimmed(resident_bytes())
