"""Rendezvous hashing: each key ranks all workers in an order of its own.

Routers that do not know of one another rank alike, and a worker that leaves moves only its own keys.
D. Thaler and C. Ravishankar, "Using name-based mappings to increase hit rates", 1998.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

# The finalizer of SplitMix64 (G. Steele, D. Lea, C. Flood, 2014).
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def ranks(workers: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """The rank of each worker for a key, from its hash `Columns.rendezvous_keys`; highest first."""
    mixed = workers ^ np.uint64(key & 0xFFFF_FFFF_FFFF_FFFF)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST  # wraps around, as intended
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))
