"""Leases end, stand still and resume; the sets stay as they are."""

from kvatlas_wire.v1 import events_pb2 as pb
from kvatlas_wire.v1 import indexer_pb2 as rpc
from tests.unit.cell.bench import LEASE_MS, Bench
from tests.unit.cell.record_source import RecordSource, store

LIVE, STALE = rpc.WORKER_STATE_LIVE, rpc.WORKER_STATE_STALE


def test_a_silent_worker_is_not_matched_keeps_its_address_and_returns_without_resending() -> None:
    bench, source = Bench(), RecordSource()
    facts = pb.Heartbeat(engine_url="http://127.0.0.1:1", capacity_blocks=9)
    bench.feed(source.events(store(1)), source.heartbeat(facts=facts))
    bench.pass_ms(LEASE_MS)
    assert (bench.state(), bench.find(1)) == (LIVE, [(1, 0, 1)])
    bench.pass_ms(200)
    assert (bench.state(), bench.find(1)) == (STALE, [])
    info = bench.worker().info
    assert (info.engine_url, info.capacity_blocks, info.blocks) == ("http://127.0.0.1:1", 9, 1)
    bench.feed(source.heartbeat([1]))
    assert (bench.state(), bench.find(1)) == (LIVE, [(1, 0, 1)])
    assert bench.counts(["leases_ended", "leases_resumed", "digests_mismatched"]) == {
        "leases_ended": 1,
        "leases_resumed": 1,
        "digests_mismatched": 0,
    }


def test_while_no_log_is_alive_leases_stand_still() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(1)))
    bench.pass_ms(100 * LEASE_MS, log_alive=False)
    assert bench.state() == LIVE
    bench.pass_ms(LEASE_MS)
    assert bench.state() == LIVE
    bench.pass_ms(200)
    assert bench.state() == STALE


def test_one_dead_log_freezes_the_leases_that_it_alone_carries() -> None:
    bench, a, b = Bench(), RecordSource(1), RecordSource(2)
    bench.feed(a.events(store(1)), transport="redis")
    bench.feed(b.events(store(1)), transport="grpc")
    bench.cell.set_log_status("redis", alive=False, records=1, lag_ms=0)
    bench.pass_ms(2 * LEASE_MS)
    assert (bench.state(1), bench.state(2)) == (LIVE, STALE)


def test_an_old_heartbeat_that_is_read_late_revives_no_worker() -> None:
    bench, dead, alive = Bench(), RecordSource(1), RecordSource(2)
    hour_ago_ms = bench.now_ms - 3_600_000
    bench.feed(dead.events(store(1)), dead.heartbeat(), appended_ms=hour_ago_ms)
    bench.feed(alive.events(store(1)))
    bench.pass_ms(100)
    assert (bench.state(1), bench.state(2)) == (STALE, LIVE)
    bench.feed(dead.heartbeat(), appended_ms=hour_ago_ms)
    assert bench.state(1) == STALE
    assert bench.find(1) == [(2, 0, 1)]


def test_a_process_that_slept_does_not_end_every_lease() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(1)))
    bench.cell.tick(bench.now_ms + 3_600_000, log_alive=True)
    assert bench.state() == LIVE


def test_heartbeats_carry_the_facts_that_frontends_route_by() -> None:
    bench, source = Bench(), RecordSource(dp_rank=2)
    load = pb.Load(requests_running=3, requests_waiting=1, kv_usage=0.5)
    facts = pb.Heartbeat(load=load, role="decode", labels={"zone": "b"}, publisher_rpc="h:1")
    bench.feed(source.heartbeat(facts=facts))
    bench.pass_ms(300)
    info = bench.worker().info
    assert info.load == load
    assert (info.role, dict(info.labels), info.publisher_rpc) == ("decode", {"zone": "b"}, "h:1")
    assert info.heartbeat_age_ms == 300
    assert info.worker == pb.Worker(worker_id=1, dp_rank=2)
