"""The memory that all processes of a frontend map.

```
connections  uint64[processes, 8]                a line per process: see `SharedListener`
load         int64[processes, 3, ROWS + 1]       requests, prefill tokens, active tokens by shared row
```

Nobody locks. A process writes its own lines alone, and the supervisor clears those of a process that
has ended. All words are aligned and are read and written whole, 8 bytes at a time; that is atomic on
x86-64 and on 64-bit Arm. Words of one request are not written at once, so a reader may see a request
whose tokens are not counted yet; the next decision sees them.

The memory has no name in any file system, so it is gone with the last process that maps it.
"""

import mmap
import os
import tempfile
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

ROWS: Final = 16_384
"""Workers whose load is shared. Those beyond it are counted by each process alone."""
UNSHARED: Final = ROWS
"""Row whose counts are always 0; the place of workers that have no shared row."""
LOADS: Final = 3
_LINE_WORDS: Final = 8
_HUNG: Final = 3  # word of a connection line


class SharedMemory:
    """The mapped memory; `fd` is its descriptor, for processes that are to map it too."""

    def __init__(self, fd: int, processes: int) -> None:
        self.fd = fd
        words = processes * _LINE_WORDS + processes * LOADS * (ROWS + 1)
        memory = mmap.mmap(fd, 8 * words)
        connections = processes * _LINE_WORDS
        self.connections: NDArray[np.uint64] = np.frombuffer(
            memory, dtype=np.uint64, count=connections
        ).reshape(processes, _LINE_WORDS)
        self.load: NDArray[np.int64] = np.frombuffer(
            memory, dtype=np.int64, offset=8 * connections
        ).reshape(processes, LOADS, ROWS + 1)

    @classmethod
    def create(cls, processes: int) -> Self:
        """Make memory of zeros."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("kvatlas-frontend")
        else:
            with tempfile.TemporaryFile() as file:  # removed already; the copy keeps it
                fd = os.dup(file.fileno())
        os.ftruncate(fd, 8 * processes * (_LINE_WORDS + LOADS * (ROWS + 1)))
        return cls(fd, processes)

    def close(self) -> None:
        """Close the descriptor; what is mapped stays so until the arrays are gone."""
        os.close(self.fd)

    def clear(self, process: int) -> None:
        """Forget everything that a process counted; it must have ended."""
        self.connections[process] = 0
        self.load[process] = 0

    def set_hung(self, process: int, *, is_hung: bool) -> None:
        """Tell the others whether to wait for this process when a connection comes."""
        self.connections[process, _HUNG] = is_hung
