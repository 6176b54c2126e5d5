"""`/metrics` of the publisher, read from the workers' own counters at each request."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily as _Counter
from prometheus_client.core import GaugeMetricFamily as _Gauge
from prometheus_client.metrics_core import Metric

from kvatlas_chassis.metrics import labelled
from kvatlas_engines import RefusalReason
from kvatlas_events import Tier
from kvatlas_events.delivery import Delivery
from kvatlas_native import MirrorMemory
from kvatlas_publisher.worker_publisher import WorkerPublisher

_P = "kvatlas_publisher_"
_LABELS = ("worker_id", "dp_rank")

_Value = Callable[[WorkerPublisher], float]
_Kind = type[_Counter | _Gauge]

_WORKER_COUNTERS = {
    "engine_messages_malformed": "Engine messages that could not be read.",
    "engine_holes": "Gaps that the engine could not fill.",
    "epochs": "Epochs begun.",
    "events": "Events published.",
    "records": "Records sealed.",
    "rejections": "Appends that a receiver rejected.",
    "state_corrupt": "Damaged files of --state-dir that were moved aside.",
    "state_failures": "Failed reads and writes of --state-dir.",
    "checkpoints": "Checkpoints written.",
    "checkpoints_resumed": "Checkpoints that an epoch continued from.",
    "checkpoints_dropped": "Checkpoints that were not used.",
}
"""Fields of `WorkerCounters`."""
_SEQUENCER_COUNTERS = {
    "messages": "Engine messages received live.",
    "gaps": "Gaps in the engine's messages.",
    "replays": "Replays requested from the engine.",
    "replay_timeouts": "Replays that did not end in time.",
}
"""Fields of the follower's `SequencerCounters`."""
_EPOCH_GAUGES = {
    "epoch": ("Current epoch; 0: none.", "header.epoch"),
    "last_event_id": ("Id of the newest event in the current epoch.", "last_event_id"),
    "mirror_blocks_held": ("Engine hashes held, published or not.", "mirror.held_blocks"),
    "mirror_blocks_suspect": (
        "Engine hashes whose removal may have been lost.",
        "mirror.suspect_blocks",
    ),
}
"""Attributes of the current `Epoch`; 0 if there is none."""


def _of_epoch(path: str) -> _Value:
    value = attrgetter(path)
    return lambda w: value(w.epoch) if w.epoch else 0


_COUNTERS: Mapping[str, tuple[str, _Value]] = {
    **{
        name: (text, attrgetter(f"context.counters.{name}"))
        for name, text in _WORKER_COUNTERS.items()
    },
    **{
        f"engine_{name}": (text, attrgetter(f"follower.sequencer.counters.{name}"))
        for name, text in _SEQUENCER_COUNTERS.items()
    },
    "engine_connects": (
        "Connections made for the engine's events.",
        lambda w: w.follower.counters.connects,
    ),
    "suspects_removed": (
        "Suspect blocks removed because the engine has no room for them.",
        lambda w: w.pipeline.epochs.suspects_removed,
    ),
}
_GAUGES: Mapping[str, tuple[str, _Value]] = {
    "engine_connected": (
        "1: the connection for the engine's events is open.",
        lambda w: w.follower.connected,
    ),
    "engine_http_up": (
        "1: the engine's metrics were read.",
        lambda w: w.monitor.scrape is not None,
    ),
    "engine_idle_seconds": (
        "Time since the engine's last message.",
        lambda w: time.monotonic() - w.follower.counters.last_message_s,
    ),
    "event_lag_seconds": (
        "Time from the engine's clock to this process's clock, at the last message.",
        lambda w: w.context.counters.event_lag_s,
    ),
    **{name: (text, _of_epoch(path)) for name, (text, path) in _EPOCH_GAUGES.items()},
}
_DELIVERY_METRICS: Sequence[tuple[_Kind, str, str, Callable[[Delivery], float]]] = (
    (_Gauge, "outbox_records", "Records queued or being appended.", lambda d: d.queued_records),
    (_Gauge, "log_up", "1: the log answers.", lambda d: d.unavailable is None),
    (
        _Counter,
        "log_records",
        "Records that the log acknowledged.",
        lambda d: d.counts.appended_records,
    ),
    (_Counter, "outbox_overflows", "Overflows that emptied the outbox.", lambda d: d.overflows),
    (_Counter, "snapshots", "Snapshots queued.", lambda d: d.counts.snapshots),
    (_Counter, "log_retries", "Appends that failed and were repeated.", lambda d: d.counts.retries),
)


def publisher_metrics(
    publishers: Sequence[WorkerPublisher], memory: MirrorMemory
) -> Iterable[Metric]:
    """Read every worker of this process, labelled by its key, and the memory that their mirrors share."""
    for kind, metrics in ((_Counter, _COUNTERS), (_Gauge, _GAUGES)):
        for name, (text, value) in metrics.items():
            samples = ((_labels(publisher), value(publisher)) for publisher in publishers)
            yield labelled(kind, _P + name, text, _LABELS, samples)
    yield from _by_label(publishers)
    for kind, name, text, of_delivery in _DELIVERY_METRICS:
        samples = (
            ([*_labels(publisher), delivery.writer.name], of_delivery(delivery))
            for publisher in publishers
            for delivery in publisher.pipeline.deliveries
        )
        yield labelled(kind, _P + name, text, (*_LABELS, "log"), samples)
    # One figure for the whole process: idle pages between mirrors belong to no worker.
    yield labelled(
        _Gauge,
        _P + "mirror_pages_bytes",
        "Large pages: used by mirrors, or idle (taken ahead, or free between mirrors).",
        ("part",),
        ((["used"], memory.used_bytes), (["idle"], memory.idle_bytes)),
    )


def _by_label(publishers: Sequence[WorkerPublisher]) -> Iterable[Metric]:
    blocks = _Gauge(_P + "mirror_blocks", "Sequence hashes published.", labels=(*_LABELS, "tier"))
    refused = _Counter(
        _P + "blocks_unindexable", "Blocks that cannot be indexed.", labels=(*_LABELS, "reason")
    )
    ended = _Counter(
        _P + "epochs_ended",
        "Epochs that ended before this process.",
        labels=(*_LABELS, "reason"),
    )
    for publisher in publishers:
        labels = _labels(publisher)
        mirror = publisher.epoch.mirror if publisher.epoch else None
        for tier in Tier:
            count = mirror.published_blocks(tier) if mirror else 0
            blocks.add_metric([*labels, tier.value], count)
        unindexable = publisher.pipeline.epochs.unindexable
        for reason in RefusalReason:
            refused.add_metric([*labels, reason.value], unindexable[reason])
        for reason, count in publisher.context.counters.epochs_ended.items():
            ended.add_metric([*labels, str(reason)], count)
    return blocks, refused, ended


def _labels(publisher: WorkerPublisher) -> list[str]:
    return [str(publisher.worker.worker_id), str(publisher.worker.dp_rank)]
