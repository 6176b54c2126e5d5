"""Cores and processor time of processes under measurement."""

import os
import time
from dataclasses import dataclass

from kvatlas_loadtest.supervisor import Process


@dataclass(frozen=True, slots=True)
class Cores:
    """Who may run where: what is measured has a core of its own, if there is more than one."""

    measured: frozenset[int]
    others: frozenset[int]

    @classmethod
    def split(cls) -> "Cores":
        """The first usable core for what is measured, the others for the rest."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(frozenset(usable[:1]), frozenset(usable[1:] or usable))


def cpu_s(process: Process) -> float:
    """Processor time that all threads of a process have used, in seconds.

    Linux gives every process a clock of it, to the nanosecond; its number is made from the pid.
    """
    cpu_clock = (~process.pid << 3) | 2
    return time.clock_gettime(cpu_clock)
