"""The recovery requests of a cell, as records and ticks change them."""

from kvatlas_wire.v1 import events_pb2 as pb
from tests.unit.cell.bench import HOLD_BACK_MS, LEASE_MS, RECOVER_MS, Bench
from tests.unit.cell.record_source import RecordSource, shutdown, store


def requested(bench: Bench, limit: int = 100, after: tuple[int, int] | None = None) -> list[int]:
    return [request.worker_id for request in bench.cell.recovery_requests(limit, after=after)]


def joining_late(worker_id: int) -> RecordSource:
    """Return a source whose first events are lost."""
    source = RecordSource(worker_id)
    source.last_event_id = 9
    return source


def test_a_gap_makes_a_request_at_once_until_it_closes() -> None:
    bench, source = Bench(), RecordSource(5, dp_rank=2)
    facts = pb.Heartbeat(publisher_rpc="host:9")
    bench.feed(source.events(store(1)), source.heartbeat(facts=facts))
    assert requested(bench) == []
    lost = source.events(store(2), store(3))
    bench.feed(source.events(store(4)))
    (request,) = bench.cell.recovery_requests(10)
    assert (request.worker_id, request.dp_rank, request.publisher_rpc) == (5, 2, "host:9")
    assert (request.epoch, request.applied, request.known) == (source.epoch, 1, 4)
    assert request.recovering is False
    bench.pass_ms(HOLD_BACK_MS + 100)
    same = bench.cell.recovery_request(5, 2)
    assert same is not None
    assert same.recovering is True
    bench.feed(lost)
    assert requested(bench) == []
    assert bench.cell.recovery_request(5, 2) is None


def test_a_worker_first_seen_late_is_requested_until_its_snapshot() -> None:
    bench, source = Bench(), joining_late(1)
    bench.feed(source.events(store(9)))
    assert requested(bench) == [1]
    bench.pass_ms(LEASE_MS // 2)
    assert requested(bench) == [1]
    bench.feed(*source.snapshot([1, 9]))
    assert requested(bench) == []


def test_a_differing_digest_makes_a_request_though_no_event_is_missing() -> None:
    bench, source = Bench(), RecordSource()
    bench.feed(source.events(store(1)), source.heartbeat([2]))
    (request,) = bench.cell.recovery_requests(10)
    assert (request.applied, request.known, request.recovering) == (1, 1, True)


def test_requests_come_in_pages() -> None:
    bench = Bench()
    bench.feed(*(joining_late(worker_id).events(store(9)) for worker_id in range(1, 8)))
    assert requested(bench, 3) == [1, 2, 3]
    assert requested(bench, 3, (3, 0)) == [4, 5, 6]
    assert requested(bench, 3, (6, 0)) == [7]
    assert requested(bench, 0) == []


def test_a_silent_or_gone_worker_is_not_requested() -> None:
    bench, source, gone, other = Bench(), joining_late(1), joining_late(2), RecordSource(3)
    bench.feed(source.events(store(9)), gone.events(store(9)), other.events(store(9)))
    assert requested(bench) == [1, 2]
    bench.feed(gone.events(shutdown(pb.Shutdown.REASON_ENGINE_GONE)))
    assert requested(bench) == [1]
    bench.pass_ms(LEASE_MS + 200)
    assert requested(bench) == []
    bench.feed(source.heartbeat())
    assert requested(bench) == [1]


def test_an_emptied_worker_is_still_requested() -> None:
    bench, source = Bench(), joining_late(1)
    bench.feed(source.events(store(9)))
    for _ in range(RECOVER_MS // 500 + 1):
        bench.feed(source.heartbeat())
        bench.pass_ms(500)
    assert bench.count("recoveries_given_up") == 1
    assert requested(bench) == [1]
