"""Gaps, fences, digests and snapshots: when a worker is matched, and how it recovers."""

from kvatlas_wire import seal_record
from kvatlas_wire.v1 import events_pb2 as pb
from kvatlas_wire.v1 import indexer_pb2 as rpc
from tests.unit.cell.bench import HOLD_BACK_MS, RECOVER_MS, Bench, held
from tests.unit.cell.record_source import RecordSource, shutdown, store

LIVE, RECOVERING = rpc.WORKER_STATE_LIVE, rpc.WORKER_STATE_RECOVERING
OVER_BUDGET = rpc.WORKER_STATE_OVER_BUDGET
STALE = rpc.WORKER_STATE_STALE


def test_a_lost_record_takes_the_worker_out_of_matches_until_a_snapshot_brings_it_back() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(1, 2)))
    source.events(store(3))  # lost
    bench.feed(source.events(store(4)))
    bench.pass_ms(HOLD_BACK_MS)
    assert (bench.state(), bench.find(1, 2)) == (LIVE, [(1, 0, 2)])
    bench.pass_ms(100)
    assert (bench.state(), bench.find(1, 2)) == (RECOVERING, [])
    assert bench.worker().events_held_back == 1
    assert "events 2..=3 are missing" in bench.cell.take_notices()[0]
    bench.feed(*source.snapshot([1, 2], [3, 4]))
    assert (bench.state(), bench.find(1, 2, 3, 4)) == (LIVE, [(1, 0, 4)])
    assert bench.count("gaps_outlasted") == 1


def test_a_lost_last_record_shows_in_the_heartbeat() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(1)))
    lost = source.events(store(2))
    bench.feed(source.heartbeat())
    bench.pass_ms(HOLD_BACK_MS + 100)
    assert bench.state() == RECOVERING
    bench.feed(lost)
    assert (bench.state(), bench.find(1, 2)) == (LIVE, [(1, 0, 2)])


def test_a_worker_first_seen_late_is_not_matched_before_its_snapshot() -> None:
    bench, source = Bench(), RecordSource()
    source.last_event_id = 40
    bench.feed(source.events(store(9)))
    assert (bench.state(), bench.find(9)) == (RECOVERING, [])
    first, second = source.snapshot([1], [2, 3], as_of=40)
    bench.feed(second)
    assert bench.state() == RECOVERING
    bench.feed(first)
    assert held(bench.worker()) == {pb.TIER_DEVICE: (4, 1 ^ 2 ^ 3 ^ 9)}
    assert (bench.state(), bench.worker().info.last_event_id) == (LIVE, 41)


def test_a_recovery_without_an_answer_empties_the_set_and_is_counted() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(1)))
    source.events(store(2))
    for _ in range((HOLD_BACK_MS + RECOVER_MS) // 500 + 1):
        bench.feed(source.heartbeat())
        bench.pass_ms(500)
    assert (bench.state(), bench.worker().info.blocks) == (RECOVERING, 0)
    assert bench.count("recoveries_given_up") == 1
    bench.feed(*source.snapshot([1, 2]))
    assert (bench.state(), bench.find(1, 2)) == (LIVE, [(1, 0, 2)])


def test_digests_are_compared_at_equal_events_and_a_difference_needs_a_snapshot() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(1, 2)), source.heartbeat([1, 2]))
    assert bench.counts(["digests_compared", "digests_mismatched"]) == {
        "digests_compared": 1,
        "digests_mismatched": 0,
    }
    bench.feed(source.heartbeat([1], last=0))
    assert bench.count("digests_compared") == 1
    bench.feed(source.heartbeat([1, 3]))
    assert (bench.state(), bench.find(1, 2)) == (RECOVERING, [])
    assert bench.count("digests_mismatched") == 1
    (notice,) = bench.cell.take_notices()
    assert f"{1 ^ 2:016x}" in notice
    assert f"{1 ^ 3:016x}" in notice
    bench.feed(source.events(store(4)))
    bench.feed(*source.snapshot([1, 3], as_of=1))
    assert (bench.state(), bench.find(1, 3, 4)) == (LIVE, [(1, 0, 3)])
    bench.feed(source.heartbeat([1, 3, 4]))
    assert bench.count("digests_mismatched") == 1


def test_blocks_that_an_emptied_publisher_no_longer_has_are_found() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(1, 2)), source.heartbeat([]))
    assert bench.counts(["digests_compared", "digests_mismatched"]) == {
        "digests_compared": 1,
        "digests_mismatched": 1,
    }
    assert (bench.state(), bench.find(1, 2)) == (RECOVERING, [])
    bench.feed(*source.snapshot([]), source.heartbeat([]))
    assert (bench.state(), bench.worker().info.blocks) == (LIVE, 0)
    assert bench.count("digests_mismatched") == 1


def test_a_snapshot_that_does_not_match_its_digests_changes_nothing() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(1)))
    (good,) = source.snapshot([1, 2], as_of=5)
    (bad,) = source.snapshot([1, 4], as_of=5)
    batch = pb.Batch.FromString(good[12:])
    batch.snapshot.sequence_hashes[:] = pb.Batch.FromString(bad[12:]).snapshot.sequence_hashes
    bench.feed(seal_record(batch.SerializeToString()))
    assert bench.count('snapshots_refused{reason="digest_mismatch"}') == 1
    assert held(bench.worker()) == {pb.TIER_DEVICE: (1, 1)}


def test_a_newer_epoch_replaces_the_set_and_fences_the_older_one() -> None:
    bench, old, new = Bench(), RecordSource(epoch=10), RecordSource(epoch=11, instance_id=88)
    bench.feed(old.events(store(1, 2)), new.events(store(5)), old.events(store(3)))
    assert held(bench.worker()) == {pb.TIER_DEVICE: (1, 5)}
    assert bench.count('records_dropped{reason="older_epoch"}') == 1
    rival = RecordSource(epoch=11, instance_id=99)
    applied = bench.feed(rival.events(store(6), first=2))
    assert applied.rejected == 1
    assert applied.first_rejection is not None
    assert f"{88:016x}" in applied.first_rejection
    assert (bench.worker().instance_id, bench.find(6)) == (88, [])


def test_shutdown_removes_the_worker_or_leaves_it_stale() -> None:
    bench, gone, leaving = Bench(), RecordSource(1), RecordSource(2)
    bench.feed(gone.events(store(1)), leaving.events(store(1)))
    bench.feed(leaving.heartbeat(facts=pb.Heartbeat(engine_url="http://127.0.0.1:1")))
    bench.feed(
        gone.events(shutdown(pb.Shutdown.REASON_ENGINE_GONE)),
        leaving.events(shutdown(pb.Shutdown.REASON_PUBLISHER_LEAVING)),
    )
    assert bench.find(1) == []
    (left,) = bench.status().workers
    assert (left.info.state, left.info.engine_url) == (STALE, "http://127.0.0.1:1")
    bench.feed(gone.heartbeat(), gone.events(store(7)), leaving.heartbeat())
    assert bench.count('records_dropped{reason="epoch_closed"}') == 3
    assert len(bench.status().workers) == 1
    again = RecordSource(1, epoch=2_000)
    bench.feed(again.events(store(1)))
    assert bench.find(1) == [(1, 0, 1)]


def test_over_the_memory_budget_the_largest_worker_is_evicted_and_reported() -> None:
    bench, small, large = Bench(memory_bytes_max=600_000), RecordSource(1), RecordSource(2)
    bench.feed(small.events(store(*range(1, 100))))
    bench.feed(large.events(store(*range(1_000, 60_000))))
    bench.pass_ms(300)
    assert (bench.state(1), bench.state(2)) == (LIVE, OVER_BUDGET)
    assert (bench.find(1), bench.find(1_000)) == ([(1, 0, 1)], [])
    assert bench.count("workers_over_budget") == 1
    assert any("over budget" in notice for notice in bench.cell.take_notices())
