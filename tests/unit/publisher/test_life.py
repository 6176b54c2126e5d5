"""Numbers and borders of one life's batches."""

import numpy as np

from kvatlas_engines import Removed, Stored, Tier
from kvatlas_events import (
    Batch,
    Header,
    Load,
    Shutdown,
    ShutdownReason,
    SnapshotPart,
    Store,
    Worker,
    decode_batch,
)
from kvatlas_publisher.life import Life, next_epoch
from kvatlas_publisher.mirror import Mirror

HEADER = Header(
    worker=Worker(7, 1),
    epoch=3,
    instance_id=4,
    cell="c",
    model="m",
    block_size=1,
    hash_contract="h",
    publisher="p",
)


def chain(first: int, blocks: int) -> Stored:
    hashes = tuple(range(first, first + blocks))
    return Stored(hashes, None, np.array(hashes, dtype=np.uint32).reshape(-1, 1), Tier.DEVICE)


def sealed(life: Life) -> list[Batch]:
    return [decode_batch(record) for record in life.seal()]


def test_an_epoch_is_near_the_wall_clock_and_above_all_seen() -> None:
    assert next_epoch(1_000, 0) == 1_000
    assert next_epoch(1_000, 5_000) == 5_001


def test_event_ids_are_consecutive_from_1_over_all_batches() -> None:
    life = Life(HEADER, Mirror())
    assert life.seal() == []
    life.apply([chain(10, 2), chain(20, 2)])
    life.apply([Removed((11,), Tier.DEVICE)])
    (first,) = sealed(life)
    assert (first.first_event_id, len(first.events), first.header) == (1, 3, HEADER)
    life.apply([chain(30, 1)])
    (second,) = sealed(life)
    assert second.first_event_id == 4
    assert life.last_event_id == 4


def test_a_batch_is_cut_by_events() -> None:
    life = Life(HEADER, Mirror())
    life.apply([chain(10 * at, 1) for at in range(1, 5_001)])
    assert life.is_batch_full
    batches = sealed(life)
    assert [(b.first_event_id, len(b.events)) for b in batches] == [(1, 4_096), (4_097, 904)]
    assert not life.is_batch_full


def test_a_batch_is_cut_by_hashes_and_a_chain_longer_than_a_batch_is_split() -> None:
    life = Life(HEADER, Mirror())
    life.apply([chain(1, 65_536 + 5)])
    life.apply([chain(100_000, 65_534)])
    batches = sealed(life)
    sizes = [[len(e.sequence_hashes) for e in b.events if isinstance(e, Store)] for b in batches]
    assert sizes == [[65_536], [5], [65_534]]
    first, second = batches[0].events[0], batches[1].events[0]
    assert isinstance(first, Store)
    assert isinstance(second, Store)
    assert second.parent == int(first.sequence_hashes[-1])


def test_a_snapshot_is_of_the_last_event_id() -> None:
    life = Life(HEADER, Mirror())
    life.apply([chain(10, 3)])
    life.seal()
    (part,) = [decode_batch(record).snapshot for record in life.snapshot()]
    assert isinstance(part, SnapshotPart)
    assert (part.as_of_event_id, len(part.sequence_hashes)) == (1, 3)
    assert part.digests == life.mirror.digests()


def test_who_gets_a_snapshot_of_a_life_that_ended_also_gets_its_end() -> None:
    life = Life(HEADER, Mirror())
    life.apply([chain(10, 3)])
    life.seal()
    farewell = life.shut_down(ShutdownReason.PUBLISHER_LEAVING)
    part, end = [decode_batch(record) for record in life.snapshot()]
    assert part.snapshot is not None
    assert part.snapshot.as_of_event_id == 1
    assert end == decode_batch(farewell)
    assert (end.first_event_id, end.events) == (
        2,
        (Shutdown(ShutdownReason.PUBLISHER_LEAVING),),
    )


def test_a_heartbeat_says_the_last_event_id_and_uses_none() -> None:
    life = Life(HEADER, Mirror())
    life.apply([chain(10, 3)])
    life.seal()
    life.mirror.capacity_blocks = 99
    load = Load(requests_running=1, requests_waiting=2, kv_usage=0.5)
    record = life.heartbeat(
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
    assert life.last_event_id == 1
