"""The way of one engine rank's messages, from the follower to the outboxes, step by step.

    follower ─effects─▶ handle ─payloads─▶ mirror ─outcome─▶ check ─▶ seal ─records─▶ deliveries

All steps run on one event loop and never await. The mirror's changes are sealed at once, or as a
batch when `flush_s` have passed since the last flush. A snapshot, a heartbeat and the end of the
epoch refer to the newest event, so each of them seals first.
"""

import asyncio
import logging
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from kvatlas_chassis import SettingsError
from kvatlas_engines import RefusalReason
from kvatlas_engines.effects import Deliver, DeliverMany, Effect, Hole, Resumed, StreamReset
from kvatlas_events import LogWriter, ShutdownReason, WorkerKey
from kvatlas_native import ApplyOutcome, payload_dp_rank
from kvatlas_publisher.context import WorkerContext
from kvatlas_publisher.deliveries import Deliveries
from kvatlas_publisher.engine.dp_rank import DpRankCheck, RankMatch
from kvatlas_publisher.engine.monitor import EngineMonitor
from kvatlas_publisher.epoch.epoch import Epoch
from kvatlas_publisher.epoch.worker_epochs import WorkerEpochs
from kvatlas_publisher.mirror import Mirror
from kvatlas_publisher.state.checkpoints import Checkpoints

log = logging.getLogger(__name__)

_FLUSH_EARLY = 0.25
"""Share of `flush_s` that a flush may come early. The follower reads a burst about every `flush_s`;
a timer for the little that is left would wake the event loop once more for each read."""


class EventPipeline:
    """Turns one engine rank's messages into records in the outboxes.

    Args:
        context: the worker.
        writers: destinations of the records.
        monitor: gives the engine's capacity and load.
        checkpoints: gives the mirror to continue with after a restart.

    Raises:
        SettingsError: the state directory cannot be read.
    """

    def __init__(
        self,
        context: WorkerContext,
        writers: Sequence[LogWriter],
        monitor: EngineMonitor,
        checkpoints: Checkpoints,
    ) -> None:
        self.epochs = WorkerEpochs(context)
        self.deliveries = Deliveries(
            context, writers, snapshot=self.snapshot, is_own_epoch=self.epochs.numbers.is_own
        )
        self._context = context
        self._monitor = monitor
        self._checkpoints = checkpoints
        self._rank = DpRankCheck(context.spec.events, context.spec.dp_rank)
        self._delayed: list[Sequence[Effect]] | None = None
        self._stored_any = False
        self._blind_spots = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flushed_s = 0.0

    # --- step 1: what the follower delivers ---

    def handle(self, effects: Sequence[Effect]) -> None:
        """Handle the follower's effects in order; while `paused`, keep them for later."""
        if self._delayed is not None:
            self._delayed.append(effects)
            return
        payloads: list[bytes] = []
        for effect in effects:
            match effect:
                case DeliverMany():
                    payloads.extend(effect.payloads)
                case Deliver():
                    payloads.append(effect.payload)
                case Hole():
                    self._apply(payloads)
                    self._on_hole(effect)
                case StreamReset():
                    self._apply(payloads)
                    self._on_stream_reset(effect)
                case Resumed():
                    self._begin_resumed_epoch()
                case _:
                    continue
        self._apply(payloads)
        self._schedule_flush()

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Leave the mirror unchanged inside; at the end, handle what was delivered meanwhile."""
        self._delayed = []
        try:
            yield
        finally:
            delayed, self._delayed = self._delayed, None
            for effects in delayed:
                self.handle(effects)

    # --- step 2: into the mirror ---

    def _apply(self, payloads: list[bytes]) -> None:
        """Apply messages to the mirror, and empty the list."""
        while payloads:
            epoch = self.epochs.current or self._epoch_of_first(payloads[0])
            if epoch is None:
                del payloads[0]
                continue
            outcome = epoch.apply_payloads(payloads)
            self._check(outcome, epoch)
            del payloads[: outcome.consumed]
            if outcome.other_rank is not None and not self._is_our_rank(outcome.other_rank):
                del payloads[0]

    def _epoch_of_first(self, payload: bytes) -> Epoch | None:
        """Begin the epoch of a first message, for the rank that it names; None: it is unusable."""
        try:
            rank = payload_dp_rank(payload)
        except ValueError as error:
            self.on_malformed(1, str(error))
            return None
        return self.begin_epoch() if self._is_our_rank(rank) else None

    # --- step 3: check what the mirror found ---

    def _check(self, outcome: ApplyOutcome, epoch: Epoch) -> None:
        context = self._context
        if outcome.malformed:
            self.on_malformed(outcome.malformed, outcome.first_malformed or "")
        if outcome.engine_clock_s is not None:
            lag_s = context.now_unix_us() / 1e6 - outcome.engine_clock_s
            context.counters.event_lag_s = max(0.0, lag_s)
        if outcome.refused_block_size is not None and not self._stored_any:
            raise SettingsError(
                f"kvatlas publisher: the engine's blocks are not of --block-size "
                f"{context.spec.block_size}; use --block-size {outcome.refused_block_size}"
            )
        self._stored_any = self._stored_any or outcome.stored_any
        if outcome.rank_confirmed:
            self._rank.confirm()
        for reason, detail in outcome.refusals:
            # Blocks of another group are normal for a hybrid model: they are only counted.
            if reason != RefusalReason.OTHER_GROUP and context.log_limiter.allows(reason):
                log.error("worker %s: cannot index: %s: %s", context.worker, reason, detail)
        self._check_blind_spots(epoch)
        if epoch.mirror.is_batch_full:
            self.flush()

    def _check_blind_spots(self, epoch: Epoch) -> None:
        """Warn once in an epoch about what the engine's release does not distinguish."""
        blind_spots = epoch.mirror.blind_spots
        if len(blind_spots) > self._blind_spots:
            self._blind_spots = len(blind_spots)
            log.warning(
                "worker %s: this engine release does not tell %s apart; blocks that differ only "
                "in them are taken as equal",
                self._context.worker,
                " and ".join(blind_spots),
            )

    def on_malformed(self, messages: int, error: str) -> None:
        """Count messages that could not be read, and log the first one's error."""
        self._context.counters.engine_messages_malformed += messages
        if self._context.log_limiter.allows("malformed"):
            log.error("worker %s: malformed message: %s", self._context.worker, error)

    def _on_hole(self, hole: Hole) -> None:
        self._context.counters.engine_holes += 1
        if self._context.log_limiter.allows("hole"):
            log.warning(
                "worker %s: the engine never sent messages %d to %d; older blocks are suspect",
                self._context.worker,
                hole.first,
                hole.last,
            )
        if self.epochs.current is not None:
            self.epochs.current.mirror.suspect_all()

    def _is_our_rank(self, named: int | None) -> bool:
        """Check the rank that a message names; the first message may set it."""
        match self._rank.check(named):
            case RankMatch.SAME:
                return True
            case RankMatch.LEARNED:
                self._adopt_rank(self._rank.followed)
                return True
            case RankMatch.STRAY:
                self.on_malformed(1, f"it names dp rank {named}")
                if self.epochs.current is not None:
                    self.epochs.current.mirror.suspect_all()
                return False

    # --- step 4: seal records and queue them for every destination ---

    def _schedule_flush(self) -> None:
        """Seal at once if the last flush is `flush_s` ago, else when it will be."""
        epoch = self.epochs.current
        if self._flush_timer is not None or epoch is None or not epoch.mirror.pending_events:
            return
        flush_s = self._context.settings.flush_s
        wait_s = flush_s - (time.monotonic() - self._flushed_s)
        if wait_s <= _FLUSH_EARLY * flush_s:
            self.flush()
            return
        self._flush_timer = asyncio.get_running_loop().call_later(wait_s, self.flush)

    def flush(self) -> None:
        """Seal all pending events and push their records to every delivery."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        epoch = self.epochs.current
        if epoch is None or not epoch.mirror.pending_events:
            return
        self._flushed_s = time.monotonic()
        self._context.counters.events += epoch.mirror.pending_events
        for record in epoch.seal():
            self._push(record)

    def _push(self, record: bytes) -> None:
        self._context.counters.records += 1
        self.deliveries.push(record)

    # --- where an epoch begins and ends ---

    def begin_epoch(self) -> Epoch:
        """Begin an epoch with an empty mirror."""
        return self._begin_epoch(None)

    def end_epoch(self, reason: ShutdownReason) -> None:
        """Publish the end of the current epoch, if there is one."""
        if self.epochs.current is not None:
            self.flush()
            self._push(self.epochs.end(reason))

    def _begin_epoch(self, resumed: Mirror | None) -> Epoch:
        self._blind_spots = 0
        epoch = self.epochs.begin(resumed)
        self._set_capacity(epoch)
        return epoch

    def _begin_resumed_epoch(self) -> None:
        """Begin an epoch with the checkpoint's mirror, which receivers get as a snapshot."""
        self._begin_epoch(self._checkpoints.resume())
        self.deliveries.require_snapshot()
        self.send_heartbeat()

    def _on_stream_reset(self, reset: StreamReset) -> None:
        """Begin an epoch because the engine's messages no longer continue the current one."""
        context = self._context
        log.warning("worker %s: a new epoch begins: %s", context.worker, reset.reason)
        self._checkpoints.drop(reset.reason)
        if self.epochs.current is not None:
            context.counters.epochs_ended[reset.reason] += 1
        self._monitor.on_engine_restarted()
        self.flush()
        self.begin_epoch()
        self.send_heartbeat()  # receivers drop the old epoch's blocks now, not with the next beat

    def _adopt_rank(self, rank: int) -> None:
        """Continue as the worker of the rank that the engine's first message names."""
        context = self._context
        log.info("worker %s: the engine says that it is rank %d", context.worker, rank)
        self.end_epoch(ShutdownReason.ENGINE_GONE)
        context.worker = WorkerKey(context.spec.worker_id, rank)
        self.epochs.on_worker_changed()
        self.deliveries.on_worker_changed(context.settings.engine_gone_s)

    # --- heartbeats and snapshots ---

    def sealed_epoch(self) -> Epoch | None:
        """Return the current epoch with nothing pending; None: there is none."""
        self.flush()
        return self.epochs.current

    def snapshot(self) -> Sequence[bytes]:
        """Return a snapshot of this moment, after sealing what is pending."""
        self.flush()
        epoch = self.epochs.latest
        return [] if epoch is None else epoch.snapshot()

    def send_heartbeat(self) -> None:
        """Queue a heartbeat for every destination, if an epoch is open."""
        epoch = self.sealed_epoch()
        if epoch is None:
            return
        if self._delayed is None:
            self._set_capacity(epoch)
        spec, scrape = self._context.spec, self._monitor.scrape
        record = epoch.heartbeat(
            load=None if scrape is None else scrape.load,
            engine_url=spec.advertised_url,
            publisher_rpc=self._context.process.advertised_rpc,
            role=spec.role,
            labels=spec.labels,
            now_unix_us=self._context.now_unix_us(),
        )
        self.deliveries.push_heartbeat(record)

    def _set_capacity(self, epoch: Epoch) -> None:
        if self._monitor.scrape is not None:
            epoch.mirror.capacity_blocks = self._monitor.scrape.capacity_blocks
