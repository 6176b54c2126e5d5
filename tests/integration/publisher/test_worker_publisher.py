"""A worker's publisher between a real ZMQ engine and a log in memory, record by record."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas_chassis import FatalError, SettingsError
from kvatlas_engines.endpoint import Endpoint
from kvatlas_engines.sequencer import FollowerSettings
from kvatlas_events import (
    Appended,
    Batch,
    Clear,
    Event,
    LogUnavailable,
    LogWriter,
    RecordsRejected,
    Remove,
    Shutdown,
    ShutdownReason,
    Store,
    Tier,
    WorkerKey,
)
from kvatlas_events.delivery import DeliverySettings
from kvatlas_events.log import Fenced
from kvatlas_hashing import item_hash, reference
from kvatlas_publisher.settings import EngineSpec
from kvatlas_publisher.state.state_dir import StateDir
from kvatlas_publisher.worker_publisher import WorkerPublisher
from tests.reference.batch_decoder import decode_batch
from tests.unit.publisher.workers import worker_context

CAPTURES = Path(__file__).parents[2] / "fixtures" / "engines"
TIMING = FollowerSettings(replay_timeout_s=0.3, idle_s=0.5)
Engine = Any  # the fixture's class; tests are no packages


class KeepingLog:
    """A log writer that keeps what it gets, and can be made to stall."""

    name = "keeping:"

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.stalled = False

    async def append(self, records: Sequence[bytes]) -> Appended:
        if self.stalled:
            raise LogUnavailable("stalled")
        self.batches += [decode_batch(record) for record in records]
        return Appended()

    async def close(self) -> None:
        pass

    @property
    def events(self) -> list[tuple[int, int, Any]]:
        """(epoch's number from 0, event id, event) of all numbered events."""
        epochs = list(dict.fromkeys(batch.header.epoch for batch in self.batches))
        return [
            (epochs.index(batch.header.epoch), batch.first_event_id + at, plain(event))
            for batch in self.batches
            for at, event in enumerate(batch.events)
        ]

    @property
    def published(self) -> list[Any]:
        return [event for _, _, event in self.events]


def plain(event: Event) -> Any:  # noqa: ANN401 - comparable
    match event:
        case Store():
            return ("store", event.parent, event.sequence_hashes.tolist(), event.tier)
        case Remove():
            return ("remove", event.sequence_hashes.tolist(), event.tier)
        case _:
            return event


def spec_of(engine: Engine, **changes: Any) -> EngineSpec:  # noqa: ANN401 - passed on
    values: dict[str, Any] = {
        "engine": "vllm",
        "events": Endpoint.parse(engine.events),
        "replay": Endpoint.parse(engine.replay),
        "engine_url": None,
        "advertised_url": "http://engine:1",
        "worker_id": 7,
        "dp_rank": None,
        "model": "m",
        "block_size": 2,
        "cell": "c",
        "logs": ("memory:",),
        "role": "",
        "labels": {"zone": "a"},
    }
    return EngineSpec(**(values | changes))


@asynccontextmanager
async def running(
    spec: EngineSpec,
    *logs: LogWriter,
    state: StateDir | None = None,
    now_unix_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    **changes: Any,  # noqa: ANN401 - passed on
) -> AsyncGenerator[WorkerPublisher, None]:
    values: dict[str, Any] = {
        "instance_id": 5,
        "advertised_rpc": "host:1",
        "heartbeat_s": 0.05,
        "engine_gone_s": 0.3,
        "follower": TIMING,
        "delivery": DeliverySettings(retry_s_max=0.05),
    }
    context = worker_context(state, spec=spec, now_unix_us=now_unix_us, **(values | changes))
    publisher = WorkerPublisher(context, logs)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await publisher.close(5.0)


def stored(*hashes: int, first_token: int = 0, parent: int | None = None) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(range(first_token, first_token + 2 * len(hashes))),
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
    }


def sequences(tokens: Sequence[int], block_size: int = 2, **prompt: Any) -> list[int]:  # noqa: ANN401
    return reference.sequence_hashes(reference.chunk_hashes(tokens, block_size, **prompt))


S = sequences(range(8))


async def test_a_whole_capture_becomes_the_events_listed_here(wire_engine: Engine) -> None:
    document = json.loads((CAPTURES / "vllm-0.33.0-sha256_cbor-int.json").read_text())
    prompt = sequences([*range(1000, 1070), *range(2000, 2010)], 16)
    salted = sequences(range(1000, 1032), 16, cache_salt="tenant-a")
    adapter = sequences(range(1000, 1032), 16, lora_name="sql-adapter")
    a, b = item_hash("a" * 64), item_hash("b" * 64)
    pictures = sequences(
        [5] * 8 + [151655] * 30 + [*range(40, 50)], 16, item_hashes=[[a], [a, b], [b]]
    )
    lookahead = sequences(range(6000, 6032), 16)
    log = KeepingLog()
    async with running(spec_of(wire_engine, block_size=16), log) as publisher:
        await wire_engine.subscribed()
        for message in document["messages"]:
            while wire_engine.next_seq < message["seq"]:
                wire_engine.fail_to_encode()
            wire_engine.send_payload(bytes.fromhex(message["frames_hex"][-1]))
        await wire_engine.until(lambda: log.published.count(Clear(None)) == 2)
        assert publisher.epoch is not None
        refused = dict(publisher.epoch.mirror.unindexable)
        assert publisher.context.counters.engine_holes == 1
    d, h, r = Tier.DEVICE, Tier.HOST, Tier.REMOTE
    merged = [event for event in log.published if not isinstance(event, Shutdown)]
    # Chains may be split by the borders of what arrived together: join them again.
    assert joined(merged) == [
        ("store", None, prompt, d),
        ("store", None, salted, d),
        ("store", None, adapter, d),
        ("remove", [prompt[4], prompt[3], prompt[2]], d),
        ("store", None, pictures, d),
        Clear(None),
        ("store", None, lookahead, d),
        ("store", None, prompt[:1], r),
        ("store", None, prompt[:1], h),
        Clear(None),
    ]
    assert {str(reason): blocks for reason, blocks in refused.items()} == {
        "other_group": 3,
        "wrong_block_size": 2,
        "embeds": 2,
        "unknown_hash": 1,
    }
    assert {batch.header.worker for batch in log.batches} == {WorkerKey(7, 0)}


def joined(events: list[Any]) -> list[Any]:
    whole: list[Any] = []
    for event in events:
        last: Any = whole[-1] if whole else Clear(None)
        if Clear not in {type(event), type(last)}:
            if event[0] == last[0] == "store" and event[1] == last[2][-1] and event[3] == last[3]:
                whole[-1] = ("store", last[1], last[2] + event[2], last[3])
                continue
            if event[0] == last[0] == "remove" and event[2] == last[2]:
                whole[-1] = ("remove", last[1] + event[1], last[2])
                continue
        whole.append(event)
    return whole


async def test_the_end_is_published_last_and_heartbeats_describe_what_was_published(
    wire_engine: Engine,
) -> None:
    log = KeepingLog()
    async with running(spec_of(wire_engine), log):
        await wire_engine.subscribed()
        wire_engine.send(stored(1, 2))
        await wire_engine.until(lambda: beats(log) and beats(log)[-1].last_event_id == 1)
        beat = beats(log)[-1]
        assert [(each.tier, each.blocks, each.digest) for each in beat.digests] == [
            (Tier.DEVICE, 2, S[0] ^ S[1])
        ]
        assert (beat.engine_url, beat.publisher_rpc) == ("http://engine:1", "host:1")
        assert beat.labels == {"zone": "a"}
    assert log.events == [
        (0, 1, ("store", None, S[:2], Tier.DEVICE)),
        (0, 2, Shutdown(ShutdownReason.PUBLISHER_LEAVING)),
    ]


def beats(log: KeepingLog) -> list[Any]:
    return [batch.heartbeat for batch in log.batches if batch.heartbeat is not None]


def whole(log: KeepingLog, *events: Any) -> Callable[[], bool]:  # noqa: ANN401
    return lambda: log.events == list(events)


async def test_an_engine_that_counts_from_0_again_is_a_new_epoch(wire_engine: Engine) -> None:
    log = KeepingLog()
    async with running(spec_of(wire_engine), log) as publisher:
        await wire_engine.subscribed()
        wire_engine.send(stored(1, 2))
        wire_engine.send(stored(3, parent=2, first_token=4))
        await wire_engine.until(lambda: len(log.events) >= 1 and log.published[-1][2][-1] == S[2])
        before = len(log.events)
        wire_engine.restart()
        wire_engine.send(stored(9))
        await wire_engine.until(lambda: len(log.events) == before + 1)
        assert log.events[-1] == (1, 1, ("store", None, S[:1], Tier.DEVICE))
        assert publisher.context.counters.epochs_ended == {"engine_restarted": 1}
    epochs = [batch.header.epoch for batch in log.batches]
    assert epochs == sorted(epochs)


async def test_a_lost_message_is_replayed_into_the_same_epoch(wire_engine: Engine) -> None:
    log = KeepingLog()
    async with running(spec_of(wire_engine), log):
        await wire_engine.subscribed()
        wire_engine.send(stored(1))
        wire_engine.send(stored(2, parent=1, first_token=2), lost=True)
        wire_engine.send(stored(3, parent=2, first_token=4))
        await wire_engine.until(
            lambda: joined(log.published) == [("store", None, S[:3], Tier.DEVICE)]
        )
        assert {epoch for epoch, _, _ in log.events} == {0}


async def test_a_log_that_stalls_gets_a_snapshot_and_costs_the_other_nothing(
    wire_engine: Engine,
) -> None:
    slow, quick = KeepingLog(), KeepingLog()
    slow.stalled = True
    tight = DeliverySettings(queue_records_max=3, retry_s_max=0.05)
    async with running(spec_of(wire_engine), slow, quick, delivery=tight, flush_s=0.0) as publisher:
        await wire_engine.subscribed()
        for block in range(1, 9):
            wire_engine.send(stored(block, first_token=10 * block))
            await wire_engine.until(lambda n=block: len(quick.events) == n)
        assert next(iter(publisher.pipeline.deliveries)).overflows == 1
        slow.stalled = False
        await wire_engine.until(lambda: any(batch.snapshot for batch in slow.batches))
        wire_engine.send(stored(9, first_token=90))
        await wire_engine.until(lambda: len(slow.events) == 1)
    (snapshot,) = [batch.snapshot for batch in slow.batches if batch.snapshot]
    assert snapshot.as_of_event_id == 8
    held = {event[2][0] for event in quick.published[:8]}
    assert set(snapshot.sequence_hashes.tolist()) == held
    assert slow.events[0][1] == 9
    assert quick.events[-1][2] == Shutdown(ShutdownReason.PUBLISHER_LEAVING)
    assert not any(batch.snapshot for batch in quick.batches)


async def test_an_engine_that_is_gone_ends_its_epoch_and_one_that_returns_begins_another(
    wire_engine: Engine,
) -> None:
    log = KeepingLog()
    async with running(spec_of(wire_engine), log):
        await wire_engine.subscribed()
        wire_engine.send(stored(1))
        await wire_engine.until(lambda: len(log.events) == 1)
        wire_engine.stop()
        gone = (0, 2, Shutdown(ShutdownReason.ENGINE_GONE))
        await wire_engine.until(lambda: log.events[-1] == gone)
        beats_before = len(beats(log))
        wire_engine.restart()
        wire_engine.send(stored(1))
        back = (1, 1, ("store", None, S[:1], Tier.DEVICE))
        await wire_engine.until(lambda: log.events[-1] == back)
        assert len(beats(log)) >= beats_before


async def test_a_publisher_that_never_ran_is_closed_at_once(wire_engine: Engine) -> None:
    context = worker_context(spec=spec_of(wire_engine))
    publisher = WorkerPublisher(context, [KeepingLog()])
    async with asyncio.timeout(5.0):
        assert await publisher.close(60.0)


async def test_a_new_publisher_opens_a_higher_epoch_though_the_clock_was_set_back(
    wire_engine: Engine, tmp_path: Path
) -> None:
    log, state = KeepingLog(), StateDir.open(tmp_path)
    ahead_us = time.time_ns() // 1_000 + 3_600_000_000
    for clock_us in (ahead_us, ahead_us - 60_000_000):
        async with running(
            spec_of(wire_engine), log, state=state, now_unix_us=lambda now=clock_us: now
        ):
            before = len(log.batches)
            await wire_engine.until(lambda before=before: len(log.batches) > before)
    epochs = list(dict.fromkeys(batch.header.epoch for batch in log.batches))
    assert epochs == [ahead_us, ahead_us + 1]


async def test_the_rank_is_the_one_that_the_engine_names(wire_engine: Engine) -> None:
    log = KeepingLog()
    async with running(spec_of(wire_engine), log) as publisher:
        await wire_engine.subscribed()
        await wire_engine.until(lambda: bool(beats(log)))
        wire_engine.send(stored(1), dp_rank=3)
        await wire_engine.until(lambda: log.batches[-1].header.worker == WorkerKey(7, 3))
        await wire_engine.until(lambda: log.published[-1] == ("store", None, S[:1], Tier.DEVICE))
        assert publisher.worker == WorkerKey(7, 3)
    ends = [
        b.header.worker for b in log.batches if Shutdown(ShutdownReason.ENGINE_GONE) in b.events
    ]
    assert ends == [WorkerKey(7, 0)]


@pytest.mark.parametrize(
    ("changes", "advice"),
    [({"block_size": 4}, "use --block-size 2"), ({"dp_rank": 1}, "use --dp-rank 0")],
)
async def test_an_engine_that_is_another_one_is_refused(
    wire_engine: Engine, changes: dict[str, int], advice: str
) -> None:
    spec = spec_of(wire_engine, **changes)
    context = worker_context(spec=spec, follower=TIMING)
    publisher = WorkerPublisher(context, [KeepingLog()])
    task = asyncio.create_task(publisher.run())
    await wire_engine.subscribed()
    wire_engine.send(stored(1))
    wire_engine.send(stored(2, parent=1))
    await wire_engine.until(task.done)
    with pytest.raises(SettingsError, match=advice):
        task.result()
    await publisher.close(1.0)


class RefusingLog(KeepingLog):
    """A receiver that will not have it."""

    def __init__(self, refusal: Callable[[Batch], RecordsRejected]) -> None:
        super().__init__()
        self.refusal = refusal

    async def append(self, records: Sequence[bytes]) -> Appended:
        if records:
            raise self.refusal(decode_batch(records[0]))
        return Appended()


def fence(batch: Batch) -> RecordsRejected:
    return Fenced("grpc://i:1", batch.header.worker, batch.header.epoch, 99)


def mismatch(_: Batch) -> RecordsRejected:
    return RecordsRejected("block size 2; the cell's is 16")


@pytest.mark.parametrize(
    ("refusal", "status", "says"),
    [(fence, 1, "epoch 99"), (mismatch, 2, "the cell's is 16")],
)
async def test_a_receiver_that_will_never_take_the_records_ends_the_publisher(
    wire_engine: Engine,
    refusal: Callable[[Batch], RecordsRejected],
    status: int,
    says: str,
) -> None:
    context = worker_context(spec=spec_of(wire_engine), follower=TIMING, heartbeat_s=0.05)
    publisher = WorkerPublisher(context, [RefusingLog(refusal)])
    task = asyncio.create_task(publisher.run())
    await wire_engine.until(task.done)
    with pytest.raises(FatalError, match=says) as caught:
        task.result()
    assert caught.value.exit_status == status
    await publisher.close(0.1)


@pytest.mark.parametrize("payload", [b"\xc1", msgspec.msgpack.encode([1.0, [stored(9)], 3])])
async def test_a_message_that_is_broken_or_of_another_rank_is_counted_and_makes_suspects(
    wire_engine: Engine, payload: bytes
) -> None:
    log = KeepingLog()
    async with running(spec_of(wire_engine), log) as publisher:
        await wire_engine.subscribed()
        wire_engine.send(stored(1))
        wire_engine.send_payload(payload)
        wire_engine.send(stored(2, parent=1, first_token=2))
        await wire_engine.until(
            lambda: joined(log.published) == [("store", None, S[:2], Tier.DEVICE)]
        )
        assert publisher.context.counters.engine_messages_malformed == 1
        assert publisher.epoch is not None
        assert publisher.epoch.mirror.suspect_blocks == 1
        assert (publisher.worker, publisher.context.counters.epochs) == (WorkerKey(7, 0), 1)


async def test_holes_are_counted_and_logged_at_a_limited_rate(
    wire_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(spec_of(wire_engine), KeepingLog()) as publisher:
        await wire_engine.subscribed()
        wire_engine.send()
        await wire_engine.until(lambda: publisher.follower.sequencer.last_seq == 0)
        for hole in range(3):
            wire_engine.fail_to_encode()
            wire_engine.send()
            await wire_engine.until(
                lambda seen=hole: publisher.context.counters.engine_holes == seen + 1
            )
    assert [text for text in caplog.messages if "never sent" in text] == [
        "worker 7/0: the engine never sent messages 1 to 1; older blocks are suspect"
    ]
