"""Requests of a trace as columns, so that numpy works on thousands of them at once.

A trace of ten million requests has a quarter of a billion ids. Columns hold an id in 8 bytes; a
list of Python numbers takes five times as much.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Requests:
    """Some requests of a trace, by arrival.

    Attributes:
        timestamps_ms: arrivals, counted from any origin.
        input_tokens: lengths of the prompts.
        output_tokens: lengths of the answers.
        offsets: request r has the ids from offsets[r] to offsets[r + 1]; one more than requests.
        ids: the hash ids of all requests, one request after another.
        lines: where each request stands in its file, counted from 1.
        lengths_only: the file has no hash ids at all.
    """

    timestamps_ms: Floats
    input_tokens: Ints
    output_tokens: Ints
    offsets: Ints
    ids: Ints
    lines: Ints
    lengths_only: bool

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.input_tokens)

    @property
    def blocks(self) -> Ints:
        """Number of ids of each request."""
        return np.diff(self.offsets)


def joined(parts: Sequence[Requests]) -> Requests:
    """All requests of one or more parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return Requests(
        np.concatenate([part.timestamps_ms for part in parts]),
        np.concatenate([part.input_tokens for part in parts]),
        np.concatenate([part.output_tokens for part in parts]),
        offsets_of(np.concatenate([part.blocks for part in parts])),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.lines for part in parts]),
        all(part.lengths_only for part in parts),
    )


def offsets_of(lengths: Ints) -> Ints:
    """Where each run begins if runs of these lengths stand one after another, and the end."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def runs(starts: Ints, lengths: Ints) -> Ints:
    """Indices of several runs, one after another: starts[0], starts[0] + 1, …, starts[1] and so on."""
    offsets = offsets_of(lengths)
    return np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], lengths)
