"""Cores and processor time of measured processes."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from kvatlas_loadtest.supervisor import Process


@dataclass(frozen=True, slots=True)
class Cores:
    """Assigns cores: the measured process has a core of its own, if there is more than one."""

    measured: frozenset[int]
    others: frozenset[int]

    @classmethod
    def split(cls) -> "Cores":
        """The first usable core for the measured process, the others for the rest."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(frozenset(usable[:1]), frozenset(usable[1:] or usable))


def cpu_s(process: Process | int) -> float:
    """Processor time used by all threads of a process, or of a pid, in seconds.

    Linux has a clock of it for every process, in nanoseconds; its number follows from the pid.
    """
    pid = process if isinstance(process, int) else process.pid
    cpu_clock = (~pid << 3) | 2
    return time.clock_gettime(cpu_clock)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def tree_of(process: Process) -> list[int]:
    """The process's pid and those of all its descendants."""
    pids = [process.pid]
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return pids
