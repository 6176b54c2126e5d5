"""Event ids and record borders of one epoch."""

from kvatlas_events import (
    Batch,
    Load,
    Shutdown,
    ShutdownReason,
    SnapshotPart,
    Store,
    WorkerKey,
)
from kvatlas_publisher.epoch.epoch import Epoch
from tests.reference import wire_events as wire
from tests.reference.batch_decoder import decode_batch
from tests.unit.publisher.workers import empty_mirror, header

HEADER = header(WorkerKey(7, 1), epoch=3)


def chain(first: int, blocks: int) -> wire.WireEvent:
    hashes = range(first, first + blocks)
    return wire.stored(hashes, hashes)


def send(epoch: Epoch, *events: wire.WireEvent) -> None:
    outcome = epoch.apply_payloads([wire.payload(*events)])
    assert (outcome.consumed, outcome.refusals) == (1, [])


def sealed(epoch: Epoch) -> list[Batch]:
    return [decode_batch(record) for record in epoch.seal()]


def test_event_ids_are_consecutive_from_1_over_all_batches() -> None:
    epoch = Epoch(HEADER, empty_mirror())
    assert epoch.seal() == []
    send(epoch, chain(10, 2), chain(20, 2))
    send(epoch, wire.removed([11]))
    (first,) = sealed(epoch)
    assert (first.first_event_id, len(first.events), first.header) == (1, 3, HEADER)
    send(epoch, chain(30, 1))
    (second,) = sealed(epoch)
    assert second.first_event_id == 4
    assert epoch.last_event_id == 4


def test_a_batch_is_cut_by_events() -> None:
    epoch = Epoch(HEADER, empty_mirror())
    send(epoch, *(chain(10 * at, 1) for at in range(1, 5_001)))
    assert epoch.mirror.is_batch_full
    batches = sealed(epoch)
    assert [(b.first_event_id, len(b.events)) for b in batches] == [(1, 4_096), (4_097, 904)]
    assert not epoch.mirror.is_batch_full


def test_a_batch_is_cut_by_hashes_and_a_chain_longer_than_a_batch_is_split() -> None:
    epoch = Epoch(HEADER, empty_mirror())
    send(epoch, chain(1, 65_536 + 5))
    send(epoch, chain(100_000, 65_534))
    batches = sealed(epoch)
    sizes = [[len(e.sequence_hashes) for e in b.events if isinstance(e, Store)] for b in batches]
    assert sizes == [[65_536], [5], [65_534]]
    first, second = batches[0].events[0], batches[1].events[0]
    assert isinstance(first, Store)
    assert isinstance(second, Store)
    assert second.parent == int(first.sequence_hashes[-1])


def test_a_snapshot_is_of_the_last_event_id() -> None:
    epoch = Epoch(HEADER, empty_mirror())
    send(epoch, chain(10, 3))
    epoch.seal()
    (part,) = [decode_batch(record).snapshot for record in epoch.snapshot()]
    assert isinstance(part, SnapshotPart)
    assert (part.as_of_event_id, len(part.sequence_hashes)) == (1, 3)
    assert part.digests == epoch.mirror.digests()


def test_the_snapshot_of_an_epoch_that_ended_includes_its_end() -> None:
    epoch = Epoch(HEADER, empty_mirror())
    send(epoch, chain(10, 3))
    epoch.seal()
    end_record = epoch.shut_down(ShutdownReason.PUBLISHER_LEAVING)
    part, end = [decode_batch(record) for record in epoch.snapshot()]
    assert part.snapshot is not None
    assert part.snapshot.as_of_event_id == 1
    assert end == decode_batch(end_record)
    assert (end.first_event_id, end.events) == (
        2,
        (Shutdown(ShutdownReason.PUBLISHER_LEAVING),),
    )


def test_a_heartbeat_names_the_last_event_id_and_uses_none() -> None:
    epoch = Epoch(HEADER, empty_mirror())
    send(epoch, chain(10, 3))
    epoch.seal()
    epoch.mirror.capacity_blocks = 99
    load = Load(requests_running=1, requests_waiting=2, kv_usage=0.5)
    record = epoch.heartbeat(
        load=load,
        engine_url="http://e:1",
        publisher_rpc="p:2",
        role="decode",
        labels={"a": "b"},
        now_unix_us=5,
    )
    beat = decode_batch(record).heartbeat
    assert beat is not None
    assert (beat.last_event_id, beat.load, beat.capacity_blocks) == (1, load, 99)
    assert (beat.engine_url, beat.role, beat.sent_unix_us) == ("http://e:1", "decode", 5)
    assert epoch.last_event_id == 1
