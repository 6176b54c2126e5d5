"""Which workers lack records: the list that recovery asks from, as records and ticks change it."""

from kvatlas_wire.v1 import events_pb2 as pb
from tests.unit.cell.bench import HOLD_BACK_MS, LEASE_MS, RECOVER_MS, Bench
from tests.unit.cell.speaker import Speaker, shutdown, store


def needy(bench: Bench, limit: int = 100, after: tuple[int, int] | None = None) -> list[int]:
    return [need.worker_id for need in bench.cell.needs(limit, after=after)]


def late(worker_id: int) -> Speaker:
    """A speaker whose first events nobody gets."""
    speaker = Speaker(worker_id)
    speaker.last_event_id = 9
    return speaker


def test_a_gap_shows_at_once_with_what_it_takes_and_is_gone_when_it_closes() -> None:
    bench, speaker = Bench(), Speaker(5, dp_rank=2)
    facts = pb.Heartbeat(publisher_rpc="host:9")
    bench.feed(speaker.events(store(1)), speaker.heartbeat(facts=facts))
    assert needy(bench) == []
    lost = speaker.events(store(2), store(3))
    bench.feed(speaker.events(store(4)))
    (need,) = bench.cell.needs(10)
    assert (need.worker_id, need.dp_rank, need.publisher_rpc) == (5, 2, "host:9")
    assert (need.epoch, need.applied, need.known) == (speaker.epoch, 1, 4)
    assert need.recovering is False
    bench.pass_ms(HOLD_BACK_MS + 100)
    same = bench.cell.need_of(5, 2)
    assert same is not None
    assert same.recovering is True
    bench.feed(lost)
    assert needy(bench) == []
    assert bench.cell.need_of(5, 2) is None


def test_a_worker_first_seen_late_is_on_the_list_until_its_snapshot() -> None:
    bench, speaker = Bench(), late(1)
    bench.feed(speaker.events(store(9)))
    assert needy(bench) == [1]
    bench.pass_ms(LEASE_MS // 2)
    assert needy(bench) == [1]
    bench.feed(*speaker.snapshot([1, 9]))
    assert needy(bench) == []


def test_a_digest_that_differs_puts_a_worker_on_the_list_though_it_lacks_no_event() -> None:
    bench, speaker = Bench(), Speaker()
    bench.feed(speaker.events(store(1)), speaker.heartbeat([2]))
    (need,) = bench.cell.needs(10)
    assert (need.applied, need.known, need.recovering) == (1, 1, True)


def test_the_list_comes_in_pages() -> None:
    bench = Bench()
    bench.feed(*(late(worker_id).events(store(9)) for worker_id in range(1, 8)))
    assert needy(bench, 3) == [1, 2, 3]
    assert needy(bench, 3, (3, 0)) == [4, 5, 6]
    assert needy(bench, 3, (6, 0)) == [7]
    assert needy(bench, 0) == []


def test_who_is_silent_or_gone_is_not_asked_for() -> None:
    bench, speaker, gone, other = Bench(), late(1), late(2), Speaker(3)
    bench.feed(speaker.events(store(9)), gone.events(store(9)), other.events(store(9)))
    assert needy(bench) == [1, 2]
    bench.feed(gone.events(shutdown(pb.Shutdown.REASON_ENGINE_GONE)))
    assert needy(bench) == [1]
    bench.pass_ms(LEASE_MS + 200)
    assert needy(bench) == []
    bench.feed(speaker.heartbeat())
    assert needy(bench) == [1]


def test_a_set_that_was_emptied_is_still_asked_for() -> None:
    bench, speaker = Bench(), late(1)
    bench.feed(speaker.events(store(9)))
    for _ in range(RECOVER_MS // 500 + 1):
        bench.feed(speaker.heartbeat())
        bench.pass_ms(500)
    assert bench.count("recoveries_given_up") == 1
    assert needy(bench) == [1]
