"""Records that a cell applies, and records that it rejects with a reason."""

import pytest

from kvatlas_wire import seal_record
from kvatlas_wire.v1 import events_pb2 as pb
from tests.unit.cell.bench import Bench, held
from tests.unit.cell.record_source import RecordSource, clear, remove, shutdown, store


def test_find_matches_follows_stores_removes_and_clears() -> None:
    bench, a, b = Bench(), RecordSource(1), RecordSource(2, dp_rank=3)
    bench.feed(a.events(store(1, 2, 3)), b.events(store(1), store(2)))
    assert bench.find(1, 2, 3, 4) == [(1, 0, 3), (2, 3, 2)]
    bench.feed(a.events(remove(3, 2)))
    assert bench.find(1, 2, 3) == [(2, 3, 2), (1, 0, 1)]
    bench.feed(b.events(clear()))
    assert bench.find(1, 2, 3) == [(1, 0, 1)]


def test_tiers_are_kept_apart_and_any_of_them_matches() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(5, 6), store(6, 9, tier=pb.TIER_HOST)))
    assert held(bench.worker()) == {pb.TIER_DEVICE: (2, 5 ^ 6), pb.TIER_HOST: (2, 6 ^ 9)}
    bench.feed(source.events(clear(pb.TIER_DEVICE)))
    assert held(bench.worker()) == {pb.TIER_HOST: (2, 6 ^ 9)}
    assert bench.find(6) == [(1, 0, 1)]
    bench.feed(source.events(clear(pb.TIER_HOST)))
    assert held(bench.worker()) == {}


def test_duplicates_and_overlaps_change_nothing() -> None:
    bench, source = Bench(), RecordSource()
    first, second = source.events(store(1, 2)), source.events(remove(2))
    overlapping = source.events(store(1, 2), remove(2), store(7), first=1)
    for record in (first, second, first, second, overlapping, first, overlapping):
        assert bench.feed(record).accepted == 1
    assert held(bench.worker()) == {pb.TIER_DEVICE: (2, 1 ^ 7)}
    assert bench.count('records_dropped{reason="seen"}') == 4
    assert bench.count("events_applied") == 3


@pytest.mark.parametrize(
    ("source", "reason", "words"),
    [
        (RecordSource(cell="red"), "other_cell", ("red", "blue")),
        (RecordSource(model="other"), "other_model", ("other", "model")),
        (RecordSource(block_size=64), "other_block_size", ("64", "16")),
        (RecordSource(hash_contract="sha-1"), "other_hash_contract", ("sha-1", "xxh3-1337-v1")),
        (RecordSource(epoch=10_700_000_000), "epoch_ahead", ("10700000000", "ten minutes")),
        (RecordSource(epoch=0), "malformed", ("no epoch",)),
    ],
)
def test_a_record_of_another_cell_is_rejected_and_both_values_are_named(
    source: RecordSource, reason: str, words: tuple[str, ...]
) -> None:
    bench = Bench()
    applied = bench.feed(source.events(store(1)), source.heartbeat())
    assert (applied.accepted, applied.rejected) == (0, 2)
    assert applied.first_rejection is not None
    assert all(word in applied.first_rejection for word in words)
    assert bench.count(f'records_rejected{{reason="{reason}"}}') == 2
    assert bench.find(1) == []
    assert list(bench.status().workers) == []


def test_an_event_id_that_jumps_is_rejected_with_its_worker_and_changes_nothing() -> None:
    bench, source, other = Bench(), RecordSource(worker_id=1), RecordSource(worker_id=2)
    bench.feed(source.events(store(1)), other.events(store(1)))
    jump = source.events(store(2), first=2**40)
    applied = bench.feed(jump, source.heartbeat(), source.events(store(3), first=2))
    assert (applied.accepted, applied.rejected) == (1, 2)
    assert applied.first_rejection is not None
    assert applied.first_rejection.startswith("worker 1/0: ")
    assert bench.count('records_rejected{reason="event_id_jump"}') == 2
    assert bench.find(1) == [(1, 0, 1), (2, 0, 1)]
    assert bench.find(3) == [(1, 0, 1)]
    assert bench.find(2) == []


def malformed() -> list[bytes]:
    header = RecordSource().header()
    beat, snapshot = pb.Heartbeat(), pb.Snapshot(parts=1)
    bad = (
        pb.Batch(),
        pb.Batch(header=header),
        pb.Batch(header=header, events=[store(1)]),
        pb.Batch(header=header, first_event_id=1, events=[pb.Event()]),
        pb.Batch(header=header, first_event_id=2**64 - 1, events=[store(1)]),
        pb.Batch(header=header, first_event_id=1, events=[store(1, tier=pb.TIER_UNSPECIFIED)]),
        pb.Batch(header=header, first_event_id=1, events=[store(1)], heartbeat=beat),
        pb.Batch(header=header, snapshot=snapshot, heartbeat=beat),
        pb.Batch(header=header, snapshot=pb.Snapshot(part=1, parts=1)),
        pb.Batch(
            header=header, first_event_id=1, events=[shutdown(pb.Shutdown.REASON_UNSPECIFIED)]
        ),
        pb.Batch(
            header=header,
            first_event_id=1,
            events=[shutdown(pb.Shutdown.REASON_ENGINE_GONE), store(1)],
        ),
    )
    return [seal_record(batch.SerializeToString()) for batch in bad] + [
        seal_record(b"\xff\xff\xff"),
    ]


@pytest.mark.parametrize("record", malformed())
def test_malformed_records_are_counted_and_skipped(record: bytes) -> None:
    bench, source = Bench(), RecordSource()
    applied = bench.feed(record, source.events(store(1)))
    assert (applied.accepted, applied.rejected) == (1, 1)
    assert bench.count('records_rejected{reason="malformed"}') == 1
    assert bench.find(1) == [(1, 0, 1)]


def test_foreign_newer_damaged_and_oversized_records_are_counted_apart() -> None:
    bench, good = Bench(), RecordSource().events(store(1))
    newer = good[:3] + b"\x02" + good[4:]
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    header = RecordSource().header()
    many = pb.Batch(header=header, first_event_id=1, events=[clear()] * 4_097)
    wide = pb.Batch(header=header, first_event_id=1, events=[store(*range(65_537))])
    oversized = [seal_record(batch.SerializeToString()) for batch in (many, wide)]
    applied = bench.feed(b"hello", newer, damaged, *oversized, seal_record(bytes(1 << 20)))
    assert (applied.accepted, applied.rejected) == (0, 6)
    reasons = ("foreign", "unknown_version", "corrupt", "too_large")
    counts = bench.counts(f'records_rejected{{reason="{reason}"}}' for reason in reasons)
    assert list(counts.values()) == [1, 1, 1, 3]


def test_a_record_of_the_largest_size_is_applied() -> None:
    bench, hashes = Bench(), range(1, 65_537)
    assert bench.feed(RecordSource().events(store(*hashes))).accepted == 1
    assert bench.worker().info.blocks == 65_536
