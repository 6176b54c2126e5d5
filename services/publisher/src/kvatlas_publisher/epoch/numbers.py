"""Numbers of one worker's epochs, each above all that were used before.

With a state directory, or an indexer or a log that knows earlier epochs, this holds over restarts
too: after a clock was set back, no older epoch is opened.
"""

import logging
from collections import deque

from kvatlas_chassis import SettingsError
from kvatlas_publisher.context import WorkerContext
from kvatlas_publisher.state.state_dir import EPOCH_MAX, StateCorrupt

log = logging.getLogger(__name__)

_OWN_EPOCHS_MAX = 256  # older ones are in no outbox any more


def next_epoch(now_unix_us: int, highest_seen: int) -> int:
    """Return an epoch above all that were seen, and near the wall clock."""
    return max(now_unix_us, highest_seen + 1)


class EpochNumbers:
    """Allocates epochs and remembers the highest one.

    Raises:
        SettingsError: the state directory's file cannot be read.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._highest = 0
        self._own: deque[int] = deque(maxlen=_OWN_EPOCHS_MAX)
        try:
            self._load()
        except OSError as error:
            raise SettingsError(
                f"kvatlas publisher: --state-dir: {error.filename}: {error.strerror}"
            ) from None

    def allocate(self) -> int:
        """Return the next epoch. It is on disk by then, so that none is used twice.

        If the disk fails, the failure is counted and logged, and the epoch is used all the same.
        """
        context = self._context
        epoch = next_epoch(context.now_unix_us(), self._highest)
        self._highest = epoch
        self._own.append(epoch)
        if context.state is not None:
            try:
                context.state.write_epoch(context.cell_worker, min(epoch, EPOCH_MAX))
            except OSError as error:
                context.on_state_failure("epochs", error)
        return epoch

    def is_own(self, epoch: int) -> bool:
        """Return whether this process allocated the epoch."""
        return epoch in self._own

    def on_worker_changed(self) -> None:
        """Continue for the context's new worker, above the epochs of both the old and the new."""
        try:
            self._load()
        except OSError as error:
            self._context.on_state_failure("epochs", error)

    def _load(self) -> None:
        context = self._context
        seen = context.process.seen_epochs.get(context.cell_worker, 0)
        self._highest = max(self._highest, seen)
        if context.state is None:
            return
        try:
            self._highest = max(self._highest, context.state.read_epoch(context.cell_worker) or 0)
        except StateCorrupt as error:
            context.counters.state_corrupt += 1
            log.warning("worker %s: %s", context.worker, error)
