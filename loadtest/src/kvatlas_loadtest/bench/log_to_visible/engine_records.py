"""Makes the records of engines that store blocks which no other engine has."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvatlas_events import Batch, Hashes, Store, Tier, encode_batch
from kvatlas_loadtest.bench.cell import record_header

CHAIN_BLOCKS = 32
"""Blocks of one prompt; events of one block need this many events for it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of blocks per event and of events per record.

    Attributes:
        blocks_an_event: `CHAIN_BLOCKS`, or 1.
        events_a_record: a multiple of the events that store one prompt.
    """

    blocks_an_event: int
    events_a_record: int

    @property
    def blocks_a_record(self) -> int:
        """Blocks that one record stores."""
        return self.blocks_an_event * self.events_a_record


LONG_EVENTS = Shape(CHAIN_BLOCKS, 32)
SHORT_EVENTS = Shape(1, 256)


@dataclass(slots=True)
class Engine:
    """One worker; makes its next records on demand."""

    worker_id: int
    shape: Shape
    epoch: int
    rng: np.random.Generator
    last_chain: Hashes = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    """Sequence hashes of the prompt that the newest record ends with."""
    _events: int = 0

    def records(self, count: int) -> list[bytes]:
        """The next `count` records, which store new prompts."""
        return [self._record() for _ in range(count)]

    def _record(self) -> bytes:
        shape = self.shape
        chains = self.rng.integers(
            2**64, size=(shape.blocks_a_record // CHAIN_BLOCKS, CHAIN_BLOCKS), dtype=np.uint64
        )
        self.last_chain = chains[-1]
        batch = Batch(
            header=record_header(self.worker_id, epoch=self.epoch, instance_id=self.worker_id),
            first_event_id=self._events + 1,
            events=tuple(
                event for chain in chains for event in _stores(chain, shape.blocks_an_event)
            ),
        )
        self._events += shape.events_a_record
        return encode_batch(batch)


def _stores(chain: Hashes, blocks: int) -> Sequence[Store]:
    return [
        Store(int(chain[at - 1]) if at else None, chain[at : at + blocks], Tier.DEVICE)
        for at in range(0, len(chain), blocks)
    ]
