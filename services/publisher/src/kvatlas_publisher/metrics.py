"""`/metrics` of the publisher, read from the sessions when asked for: nothing is counted twice."""

import time
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvatlas_engines import Reason, Tier
from kvatlas_events import Tier as SaidTier
from kvatlas_native import Memory
from kvatlas_publisher.session import Session

_P = "kvatlas_publisher_"
_LABELS = ("worker_id", "dp_rank")


class SessionsCollector(Collector):
    """Every session of this process, labelled by its worker; and the memory that their mirrors share."""

    def __init__(
        self, sessions: Sequence[Session], memory: Memory, registry: CollectorRegistry
    ) -> None:
        self._sessions = sessions
        self._memory = memory
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Read all sessions."""
        yield from self._engine_counters()
        yield from self._state()
        yield from self._by_label()
        yield from self._deliveries()
        yield self._large_pages()

    def _family(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        value: Callable[[Session], float],
    ) -> Metric:
        family = kind(_P + name, text, labels=_LABELS)
        for session in self._sessions:
            family.add_metric(_worker(session), value(session))
        return family

    def _engine_counters(self) -> Iterable[Metric]:
        counters: tuple[tuple[str, str, Callable[[Session], float]], ...] = (
            ("engine_messages", "Live messages.", lambda s: s.follower.stream.counters.messages),
            (
                "engine_messages_malformed",
                "Messages that could not be read.",
                lambda s: s.counters.malformed_messages + s.follower.counters.malformed_frames,
            ),
            ("engine_gaps", "Gaps found.", lambda s: s.follower.stream.counters.gaps),
            ("engine_holes", "Gaps that the engine never filled.", lambda s: s.counters.holes),
            ("engine_replays", "Replays asked for.", lambda s: s.follower.stream.counters.replays),
            (
                "engine_replay_timeouts",
                "Replays that did not end.",
                lambda s: s.follower.stream.counters.replay_timeouts,
            ),
            ("engine_connects", "Connections made.", lambda s: s.follower.counters.connects),
            ("epochs", "Lives begun.", lambda s: s.counters.lives),
            ("events", "Events said.", lambda s: s.counters.events),
            ("records", "Records sealed.", lambda s: s.counters.records),
            ("rejections", "Appends that a receiver refused.", lambda s: s.counters.rejected),
            (
                "state_corrupt",
                "Files of --state-dir set aside.",
                lambda s: s.counters.state_corrupt,
            ),
            ("state_failures", "Of --state-dir.", lambda s: s.counters.state_failures),
            ("checkpoints", "Mirrors written.", lambda s: s.counters.checkpoints),
            ("checkpoints_resumed", "Gone on from.", lambda s: s.counters.checkpoints_resumed),
            ("checkpoints_dropped", "Not gone on from.", lambda s: s.counters.checkpoints_dropped),
            ("suspects_removed", "Blocks over the engine's capacity.", _suspects_removed),
        )
        for name, text, value in counters:
            yield self._family(CounterMetricFamily, name, text, value)

    def _state(self) -> Iterable[Metric]:
        gauges: tuple[tuple[str, str, Callable[[Session], float]], ...] = (
            ("engine_connected", "1: events can arrive.", lambda s: s.follower.connected),
            ("engine_http_up", "1: its metrics were read.", lambda s: s.scrape is not None),
            (
                "engine_idle_seconds",
                "Since the last message.",
                lambda s: time.monotonic() - s.follower.counters.last_heard_s,
            ),
            (
                "event_lag_seconds",
                "From the engine's clock to ours, at the last message.",
                lambda s: s.counters.event_lag_s,
            ),
            ("epoch", "Of the running life.", lambda s: s.life.header.epoch if s.life else 0),
            ("last_event_id", "Said.", lambda s: s.life.last_event_id if s.life else 0),
            (
                "mirror_blocks_held",
                "Engine hashes, published or not.",
                lambda s: s.life.mirror.held_blocks if s.life else 0,
            ),
            (
                "mirror_blocks_suspect",
                "Whose removal may have been lost.",
                lambda s: s.life.mirror.suspect_blocks if s.life else 0,
            ),
        )
        for name, text, value in gauges:
            yield self._family(GaugeMetricFamily, name, text, value)

    def _by_label(self) -> Iterable[Metric]:
        blocks = GaugeMetricFamily(
            _P + "mirror_blocks", "Sequence hashes published.", labels=(*_LABELS, "tier")
        )
        refused = CounterMetricFamily(
            _P + "blocks_unindexable", "Blocks refused.", labels=(*_LABELS, "reason")
        )
        ended = CounterMetricFamily(
            _P + "epochs_ended", "Lives that were cut short.", labels=(*_LABELS, "reason")
        )
        for session in self._sessions:
            worker = _worker(session)
            mirror = session.life.mirror if session.life else None
            for tier, said in zip(Tier, SaidTier, strict=True):
                count = mirror.published_blocks(tier) if mirror else 0
                blocks.add_metric([*worker, said.value], count)
            for reason in Reason:
                count = session.counters.unindexable[reason]
                count += mirror.unindexable[reason] if mirror else 0
                refused.add_metric([*worker, reason.value], count)
            for end, count in session.counters.lives_ended.items():
                ended.add_metric([*worker, str(end)], count)
        return blocks, refused, ended

    def _deliveries(self) -> Iterable[Metric]:
        labels = (*_LABELS, "log")
        queued = GaugeMetricFamily(_P + "outbox_records", "Waiting or under way.", labels=labels)
        up = GaugeMetricFamily(_P + "log_up", "1: the log answers.", labels=labels)
        appended = CounterMetricFamily(_P + "log_records", "Acknowledged.", labels=labels)
        overflows = CounterMetricFamily(_P + "outbox_overflows", "Emptied.", labels=labels)
        snapshots = CounterMetricFamily(_P + "snapshots", "Queued.", labels=labels)
        retries = CounterMetricFamily(_P + "log_retries", "Appends again.", labels=labels)
        for session in self._sessions:
            for delivery in session.deliveries:
                of = [*_worker(session), delivery.writer.name]
                queued.add_metric(of, delivery.queued_records)
                up.add_metric(of, delivery.unavailable is None)
                appended.add_metric(of, delivery.counts.appended_records)
                overflows.add_metric(of, delivery.overflows)
                snapshots.add_metric(of, delivery.counts.snapshots)
                retries.add_metric(of, delivery.counts.retries)
        return queued, up, appended, overflows, snapshots, retries

    def _large_pages(self) -> Metric:
        """Of the process: mirrors share pages, so what lies idle between them is nobody's."""
        pages = GaugeMetricFamily(
            _P + "mirror_pages_bytes",
            "Large pages: in use by mirrors, and idle, taken ahead or free between them.",
            labels=("part",),
        )
        pages.add_metric(["used"], self._memory.used_bytes)
        pages.add_metric(["idle"], self._memory.idle_bytes)
        return pages


def _worker(session: Session) -> list[str]:
    return [str(session.worker.worker_id), str(session.worker.dp_rank)]


def _suspects_removed(session: Session) -> float:
    now = session.life.mirror.suspects_removed if session.life else 0
    return session.counters.suspects_removed + now
