"""The epochs of one worker's lives, each above all that were used before.

With a state directory, or an indexer that tells what it has seen, that goes for any process before
this one, too: a clock that was set back opens no older epoch.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping

from kvatlas_chassis import SettingsError
from kvatlas_events import Worker
from kvatlas_publisher.life import next_epoch
from kvatlas_publisher.session_terms import SessionCounters
from kvatlas_publisher.state_dir import EPOCH_MAX, Owner, StateCorrupt, StateDir

log = logging.getLogger(__name__)

_OWN_EPOCHS_MAX = 256  # older ones are in no outbox any more


class Epochs:
    """Opens epochs and remembers them.

    Args:
        owner: whose they are; the dp rank may turn out to be another one, see `move_to`.
        state: where the highest one is kept; None: nowhere.
        counters: `state_corrupt` and `state_failures` are counted up.
        now_unix_us: the wall clock.
        seen: the highest epochs that others have seen, by whose they are.

    Raises:
        SettingsError: the owner's file cannot be read.
    """

    def __init__(
        self,
        owner: Owner,
        state: StateDir | None,
        counters: SessionCounters,
        *,
        now_unix_us: Callable[[], int],
        seen: Mapping[Owner, int] | None = None,
    ) -> None:
        self._owner = owner
        self._state = state
        self._counters = counters
        self._now_unix_us = now_unix_us
        self._seen = seen or {}
        self._highest = 0
        self._own: deque[int] = deque(maxlen=_OWN_EPOCHS_MAX)
        self._fails = False
        try:
            self._remember()
        except OSError as error:
            raise SettingsError(
                f"kvatlas publisher: --state-dir: {error.filename}: {error.strerror}"
            ) from None

    def open(self) -> int:
        """Return the next epoch. It is on disk by then, so that none is used twice.

        A disk that fails is counted and warned of once; the epoch is opened all the same.
        """
        epoch = next_epoch(self._now_unix_us(), self._highest)
        self._highest = epoch
        self._own.append(epoch)
        if self._state is not None:
            try:
                self._state.write_epoch(self._owner, min(epoch, EPOCH_MAX))
                self._fails = False
            except OSError as error:
                self._on_failure(error)
        return epoch

    def is_ours(self, epoch: int) -> bool:
        """Whether this process opened it."""
        return epoch in self._own

    def move_to(self, worker: Worker) -> None:
        """Go on for the rank that the engine says it is, above what was used for either."""
        self._owner = Owner(self._owner.cell, worker)
        try:
            self._remember()
        except OSError as error:
            self._on_failure(error)

    def _remember(self) -> None:
        self._highest = max(self._highest, self._seen.get(self._owner, 0))
        if self._state is None:
            return
        try:
            self._highest = max(self._highest, self._state.read_epoch(self._owner) or 0)
        except StateCorrupt as error:
            self._counters.state_corrupt += 1
            log.warning("worker %s: %s", self._owner.worker, error)

    def _on_failure(self, error: OSError) -> None:
        self._counters.state_failures += 1
        if not self._fails:
            self._fails = True
            log.warning(
                "worker %s: --state-dir fails, going on without: %s", self._owner.worker, error
            )
