"""The epochs of one worker: the current one, and the last one that ended.

An epoch begins when the engine is first heard of. It ends when the engine restarts, when messages
are lost for good, when the engine is gone, or when this process stops. The next epoch begins with
an empty mirror and event id 1.
"""

import logging
import os
import socket
from collections import Counter

from kvatlas_engines import RefusalReason
from kvatlas_events import Header, ShutdownReason
from kvatlas_hashing import CONTRACT
from kvatlas_publisher.context import WorkerContext
from kvatlas_publisher.epoch.epoch import Epoch
from kvatlas_publisher.epoch.numbers import EpochNumbers
from kvatlas_publisher.mirror import Mirror

log = logging.getLogger(__name__)


class WorkerEpochs:
    """Begins and ends epochs, and adds up what their mirrors count.

    Raises:
        SettingsError: the state directory cannot be read.
    """

    def __init__(self, context: WorkerContext) -> None:
        self.current: Epoch | None = None
        """None: the engine was not heard of yet, or is gone."""
        self.numbers = EpochNumbers(context)
        self._context = context
        self._last_ended: Epoch | None = None
        self._unindexable: Counter[RefusalReason] = Counter()
        self._suspects_removed = 0

    @property
    def latest(self) -> Epoch | None:
        """The current epoch, else the last one that ended."""
        return self.current or self._last_ended

    def begin(self, resumed: Mirror | None = None) -> Epoch:
        """Begin the next epoch, with an empty mirror or the one of a checkpoint."""
        context = self._context
        self._add_counts()
        mirror = resumed or new_mirror(context)
        header = self._header(self.numbers.allocate())
        self.current = Epoch(
            header, mirror, context.settings.replay_bytes_max, resumed=resumed is not None
        )
        self._last_ended = None
        context.counters.epochs += 1
        log.info("worker %s: epoch %d begins", context.worker, header.epoch)
        return self.current

    def end(self, reason: ShutdownReason) -> bytes:
        """End the current epoch and return its last record; no event may be pending."""
        if self.current is None:
            raise RuntimeError("no epoch is open")
        record = self.current.shut_down(reason)
        self._add_counts()
        self._last_ended, self.current = self.current, None
        return record

    def on_worker_changed(self) -> None:
        """Continue for the context's new worker."""
        self.numbers.on_worker_changed()
        self._last_ended = None

    @property
    def unindexable(self) -> Counter[RefusalReason]:
        """Blocks that were refused over all epochs, by reason."""
        current = self.current.mirror.unindexable if self.current else Counter[RefusalReason]()
        return self._unindexable + current

    @property
    def suspects_removed(self) -> int:
        """Suspect blocks that were removed over all epochs."""
        current = self.current.mirror.suspects_removed if self.current else 0
        return self._suspects_removed + current

    def _add_counts(self) -> None:
        """Keep what the current mirror counted."""
        self._unindexable = self.unindexable
        self._suspects_removed = self.suspects_removed

    def _header(self, epoch: int) -> Header:
        context = self._context
        return Header(
            worker=context.worker,
            epoch=epoch,
            instance_id=context.process.instance_id,
            cell=context.spec.cell,
            model=context.spec.model,
            block_size=context.spec.block_size,
            hash_contract=CONTRACT,
            publisher=f"{socket.gethostname()}-{os.getpid()}",
        )


def new_mirror(context: WorkerContext, state: bytes | None = None) -> Mirror:
    """Return a worker's mirror: empty, or from a checkpoint's state.

    Raises:
        ValueError: the state is damaged, of other settings, or too large.
    """
    return Mirror(
        engine=context.spec.engine,
        block_size=context.spec.block_size,
        blocks_max=context.settings.mirror_blocks_max,
        memory=context.process.memory,
        state=state,
    )
