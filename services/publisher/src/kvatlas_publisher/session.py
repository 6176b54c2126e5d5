"""One engine rank, from its sockets to the log, through all of its lives.

    follower ──effects──▶ life (mirror, event ids) ──records──▶ a delivery per transport

A life begins when the engine shows itself and ends when it restarts, when its history is lost, when
it is gone, or when we leave. Each has an epoch of its own and begins with an empty mirror and event
id 1. What the engine says is said on at once, or in a batch when `flush_s` have passed since the
last one; heartbeats follow what they speak of, because sealing always goes before.

Everything runs on one event loop; the path from a message to the outboxes never awaits.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from kvatlas_chassis import Seldom, SettingsError, TaskSet
from kvatlas_engines import READERS, MalformedMessage, Reason, decode_payload
from kvatlas_engines.anchor import Resumed
from kvatlas_engines.follower import Follower
from kvatlas_engines.stream import Deliver, DeliverRun, Effect, Hole, NewLife, Stream
from kvatlas_events import LogWriter, RecordsRejected, ShutdownReason, Worker
from kvatlas_events.delivery import Delivery
from kvatlas_native import Heard
from kvatlas_publisher.checkpoint import Checkpoints
from kvatlas_publisher.engine_http import EngineHttp, Scrape, check_agreement
from kvatlas_publisher.epochs import Epochs
from kvatlas_publisher.following import Following
from kvatlas_publisher.life import Life
from kvatlas_publisher.outlets import Outlets
from kvatlas_publisher.rank import Named, Rank
from kvatlas_publisher.session_terms import SessionCounters, SessionSettings, header_of
from kvatlas_publisher.settings import EngineSpec
from kvatlas_publisher.state_dir import Owner, StateDir

log = logging.getLogger(__name__)


class Session:
    """Follows one engine rank and says what its cache holds, until `close`.

    Args:
        spec: what to follow.
        settings: what all sessions share.
        writers: where records go; the session closes them.
        http: the engine's HTTP; None: it has none that we know.
        state: what is kept over restarts; None: nothing.
        now_unix_us: the wall clock.

    Raises:
        SettingsError: the state cannot be read.
    """

    def __init__(
        self,
        spec: EngineSpec,
        settings: SessionSettings,
        writers: Sequence[LogWriter],
        http: EngineHttp | None,
        *,
        state: StateDir | None = None,
        now_unix_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self.spec = spec
        self.counters = SessionCounters()
        self.life: Life | None = None
        """None: the engine has not shown itself, or is gone."""
        self.scrape: Scrape | None = None
        self._rank = Rank(spec.events, spec.dp_rank)
        self.worker = Worker(spec.worker_id, self._rank.followed)
        self._ended_life: Life | None = None
        self._settings = settings
        self._writers = writers
        self._http = http
        self._now_unix_us = now_unix_us
        self._blind_spots = 0
        self._indexed_any = False
        self._epochs = Epochs(
            Owner(spec.cell, self.worker),
            state,
            self.counters,
            now_unix_us=now_unix_us,
            seen=settings.seen_epochs,
        )
        self._checkpoints = Checkpoints(spec, self.worker, state, settings, self.counters)
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flushed_s = 0.0
        self._watching, self._delivering = TaskSet(), TaskSet()
        self._models_checked = False
        self._last_alive_s = time.monotonic()
        self._said = Seldom()
        self._begun = False
        self._following = Following(
            spec, settings.timing, self._on_effects, self._watching, self._checkpoints.anchor
        )
        self._outlets = self._make_outlets()

    @property
    def deliveries(self) -> Sequence[Delivery]:
        """One per destination."""
        return self._outlets.deliveries

    @property
    def follower(self) -> Follower:
        """Of the engine."""
        return self._following.follower

    # --- start and end ---

    async def check_engine(self) -> None:
        """Ask the engine once what it is; nothing if it does not answer yet.

        Raises:
            SettingsError: it is not what was configured.
        """
        if self._http is None:
            return
        self.scrape = await self._http.scrape(
            dp_rank=self.worker.dp_rank, block_size=self.spec.block_size
        )
        models = None if self._models_checked else await self._http.models()
        self._models_checked = self._models_checked or models is not None
        check_agreement(self.scrape, models, model=self.spec.model, block_size=self.spec.block_size)

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            FatalError: the engine or the log's receiver is not what was configured, or another
                publisher speaks for this worker.
        """
        self._begun = True
        self._outlets.start(self._delivering)
        self._watching.start(self._watch_engine(), name="engine http")
        self._watching.start(self._beat(), name="heartbeat")
        every_s, hold = self._settings.checkpoint_s, self._following.holding
        self._watching.start(self._checkpoints.keep(every_s, self._place, hold), name="checkpoints")
        self._settings.claims.watch(
            self.spec, lambda: self.life or self._ended_life, self._watching
        )
        self._following.start()
        task_sets = (self._watching, self._delivering)
        failures = [asyncio.create_task(each.failed()) for each in task_sets]
        try:
            done, _ = await asyncio.wait(failures, return_when=asyncio.FIRST_COMPLETED)
            for failure in done:
                failure.result()
        finally:
            for failure in failures:
                failure.cancel()
            await asyncio.gather(*failures, return_exceptions=True)
            await self._watching.close()

    async def close(self, drain_s: float) -> bool:
        """Say that we leave, deliver it for at most `drain_s` seconds, and let go of everything.

        True: every destination has acknowledged everything.
        """
        await self._checkpoints.settled()
        self._checkpoints.save(*self._place())
        if self.life is not None:
            self._end_life(ShutdownReason.PUBLISHER_LEAVING)
        whole = not self._begun or await self._outlets.close(drain_s)  # else nobody delivers
        await self._delivering.close()
        for writer in self._writers:
            await writer.close()
        return whole

    # --- the engine's life ---

    def _on_effects(self, effects: Sequence[Effect]) -> None:
        payloads: list[bytes] = []
        for effect in effects:
            match effect:
                case DeliverRun():
                    payloads.extend(effect.payloads)
                case Deliver():
                    payloads.append(effect.payload)
                case Hole():
                    self._on_payloads(payloads)
                    self._on_hole(effect)
                case NewLife():
                    self._on_payloads(payloads)
                    self._on_new_life(effect)
                case Resumed():
                    self._begin_life(resumed=True)
                    self._heartbeat()
                case _:
                    continue
        self._on_payloads(payloads)
        self._schedule_flush()

    def _on_payloads(self, payloads: list[bytes]) -> None:
        """Put a run of messages into the mirror, and empty the list."""
        while payloads:
            if self.life is None and not self._open_life(payloads[0]):
                del payloads[0]
                continue
            heard = self._tell(payloads)
            del payloads[: heard.taken]
            if heard.other_rank is not None and not self._is_of_ours(heard.other_rank):
                del payloads[0]

    def _open_life(self, payload: bytes) -> bool:
        """Begin the life that a first message shows, of the rank that it names; False: none."""
        reader = READERS[self.spec.engine](self.spec.block_size)
        try:
            batch = decode_payload(payload, reader.order)
        except MalformedMessage as error:
            self._on_malformed(1, str(error))
            return False
        if not self._is_of_ours(batch.dp_rank):
            return False
        self._begin_life()
        return True

    def _tell(self, payloads: Sequence[bytes]) -> Heard:
        life = self.life or self._begin_life()
        heard = life.tell(payloads)
        if heard.malformed:
            self._on_malformed(heard.malformed, heard.first_malformed or "")
        if heard.ts is not None:
            self.counters.event_lag_s = max(0.0, self._now_unix_us() / 1e6 - heard.ts)
        if heard.block_size_at_first is not None and not self._indexed_any:
            raise SettingsError(
                f"kvatlas publisher: the engine's blocks are not of --block-size "
                f"{self.spec.block_size}; use --block-size {heard.block_size_at_first}"
            )
        self._indexed_any = self._indexed_any or heard.stored_any
        if heard.rank_said:
            self._rank.heard()
        for reason, detail in heard.refusals:
            # Another group is a hybrid model's normal state; the counter tells.
            if reason != Reason.OTHER_GROUP and self._said.is_due(reason):
                log.error("worker %s: cannot index: %s: %s", self.worker, reason, detail)
        self._check_sight(life)
        if life.is_batch_full:
            self._flush()
        return heard

    def _on_malformed(self, messages: int, what: str) -> None:
        self.counters.malformed_messages += messages
        if self._said.is_due("malformed"):
            log.error("worker %s: malformed message: %s", self.worker, what)

    def _check_sight(self, life: Life) -> None:
        """Warn once in a life of what the engine's release does not tell apart."""
        blind_spots = life.mirror.blind_spots
        if len(blind_spots) > self._blind_spots:
            self._blind_spots = len(blind_spots)
            log.warning(
                "worker %s: this engine release does not tell %s apart; blocks that differ only "
                "in them are taken as equal",
                self.worker,
                " and ".join(blind_spots),
            )

    def _on_hole(self, hole: Hole) -> None:
        self.counters.holes += 1
        if self._said.is_due("hole"):
            log.warning(
                "worker %s: the engine never sent messages %d to %d; older blocks are suspect",
                self.worker,
                hole.first,
                hole.last,
            )
        if self.life is not None:
            self.life.mirror.suspect_all()

    def _on_new_life(self, end: NewLife) -> None:
        log.warning("worker %s: a new epoch begins: %s", self.worker, end.reason)
        self._checkpoints.drop(end.reason)
        if self.life is not None:
            self.counters.lives_ended[end.reason] += 1
        self._models_checked = False
        self._flush()
        self._begin_life()
        self._heartbeat()  # what the old epoch held is gone: do not wait to say so

    def _place(self) -> tuple[Life | None, Stream]:
        self._flush()
        return self.life, self.follower.stream

    def _begin_life(self, *, resumed: bool = False) -> Life:
        self._bank_counters()
        epoch = self._epochs.open()
        self._ended_life = None
        self.counters.lives += 1
        self._blind_spots = 0
        mirror = self._checkpoints.resume() if resumed else self._checkpoints.new_mirror()
        if self.scrape is not None:
            mirror.capacity_blocks = self.scrape.capacity_blocks
        header = header_of(self.spec, self.worker, epoch, self._settings.instance_id)
        self.life = Life(header, mirror, self._settings.replay_bytes_max, resumed=resumed)
        if resumed:
            self._outlets.require_snapshot()
        log.info("worker %s: epoch %d begins", self.worker, epoch)
        return self.life

    def _end_life(self, reason: ShutdownReason) -> None:
        if self.life is None:
            return
        self._flush()
        self._push(self.life.shut_down(reason))
        self._bank_counters()
        self._ended_life, self.life = self.life, None

    def _is_of_ours(self, said: int | None) -> bool:
        """Take the rank from the engine's first message; False: a message is another rank's."""
        match self._rank.judge(said):
            case Named.OURS:
                return True
            case Named.LEARNED:
                self._become_rank()
                return True
            case Named.STRAY:
                self._on_malformed(1, f"it names dp rank {said}")
                if self.life is not None:
                    self.life.mirror.suspect_all()
                return False

    def _become_rank(self) -> None:
        rank = self._rank.followed
        log.info("worker %s: the engine says that it is rank %d", self.worker, rank)
        self._end_life(ShutdownReason.ENGINE_GONE)
        self.worker = Worker(self.spec.worker_id, rank)
        self._epochs.move_to(self.worker)
        self._checkpoints.move_to(self.worker)
        self._ended_life = None
        before, self._outlets = self._outlets, self._make_outlets()
        drain_s = self._settings.engine_gone_s
        relieving = self._outlets.take_over(before, drain_s, self._delivering)
        self._delivering.start(relieving, name="hand over")

    def _bank_counters(self) -> None:
        """Keep what a mirror counted, when its life is over."""
        if self.life is not None:
            self.counters.unindexable += self.life.mirror.unindexable
            self.counters.suspects_removed += self.life.mirror.suspects_removed

    # --- records ---

    def _schedule_flush(self) -> None:
        """Say what came alone at once, and what follows closely together, `flush_s` later."""
        if self._flush_timer is not None or self.life is None or not self.life.pending_events:
            return
        wait_s = self._settings.flush_in_s(time.monotonic() - self._flushed_s)
        if wait_s <= 0:
            self._flush()
            return
        self._flush_timer = asyncio.get_running_loop().call_later(wait_s, self._flush)

    def _flush(self) -> None:
        """Seal what was said and hand it to every delivery."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self.life is None or not self.life.pending_events:
            return
        self._flushed_s = time.monotonic()
        self.counters.events += self.life.pending_events
        for record in self.life.seal():
            self._push(record)

    def _push(self, record: bytes) -> None:
        self.counters.records += 1
        self._outlets.push(record)

    def sealed_life(self) -> Life | None:
        """Return the running life with nothing pending; None: there is none now."""
        self._flush()
        return self.life

    def _snapshot(self) -> Sequence[bytes]:
        """Return a snapshot of this moment; what was said before it is sealed before it."""
        self._flush()
        life = self.life or self._ended_life
        return [] if life is None else life.snapshot()

    def _heartbeat(self) -> None:
        if self.life is None:
            return
        self._flush()
        record = self.life.heartbeat(
            load=None if self.scrape is None else self.scrape.load,
            engine_url=self.spec.advertised_url,
            publisher_rpc=self._settings.advertised_rpc,
            role=self.spec.role,
            labels=self.spec.labels,
            now_unix_us=self._now_unix_us(),
        )
        self._outlets.push_heartbeat(record)

    # --- presence ---

    async def _beat(self) -> None:
        while True:
            await self._pulse()
            await asyncio.sleep(self._settings.heartbeat_s)

    async def _pulse(self) -> None:
        """Judge whether the engine is there, and say that we are."""
        now = time.monotonic()
        if self.follower.connected or (self._http is not None and self._http.answers):
            self._last_alive_s = now
            if self.life is None and not await self._awaits_proof(now):
                self._begin_life()
        elif self.life is not None and now - self._last_alive_s >= self._settings.engine_gone_s:
            log.warning("worker %s: the engine is gone", self.worker)
            self.counters.lives_ended["engine_gone"] += 1
            self._end_life(ShutdownReason.ENGINE_GONE)
            await self._following.anew()
        if self.life and self.scrape and not self._following.is_holding:
            self.life.mirror.capacity_blocks = self.scrape.capacity_blocks
        self._heartbeat()

    async def _awaits_proof(self, now: float) -> bool:
        """Whether a checkpoint still waits for an engine that answers; not for ever."""
        checkpoints = self._checkpoints
        if checkpoints.anchor is None:
            return False
        if not checkpoints.is_overdue(now, self._settings.engine_gone_s):
            return True
        checkpoints.drop("the engine does not show its last message")
        await self._following.anew()
        return False

    async def _watch_engine(self) -> None:
        """Keep asking the engine for its load; a slow answer delays no heartbeat."""
        while self._http is not None:
            await self.check_engine()
            await asyncio.sleep(self._settings.heartbeat_s)

    # --- deliveries ---

    def _make_outlets(self) -> Outlets:
        return Outlets(
            self.worker,
            self._writers,
            snapshot=self._snapshot,
            refused=self._on_refused,
            is_ours=self._epochs.is_ours,
            settings=self._settings.delivery,
        )

    def _on_refused(self, rejection: RecordsRejected) -> None:
        self.counters.rejected += 1
        if self._said.is_due("rejected"):
            log.error("worker %s: events are refused: %s", self.worker, rejection)
