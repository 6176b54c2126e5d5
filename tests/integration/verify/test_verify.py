"""`kvatlas verify` against real servers: whole, different, and what cannot be told."""

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from kvatlas_native import CellServer
from kvatlas_verify.main import command
from kvatlas_wire import seal_record
from kvatlas_wire.v1 import events_pb2 as pb
from kvatlas_wire.v1 import publisher_pb2, publisher_pb2_grpc
from tests.unit.cell.bench import Bench
from tests.unit.cell.record_source import RecordSource, store

FAST = ("--pause-ms", "0", "--timeout-s", "20")


@dataclass
class Replica:
    """A cell behind a server of its own."""

    bench: Bench
    address: str


@contextmanager
def replicas(*told: Iterable[bytes], ready: bool = True) -> Generator[list[Replica]]:
    """One replica for each list of records."""
    made: list[Replica] = []
    servers: list[CellServer] = []
    for records in told:
        bench = Bench()
        bench.feed(*records)
        bench.cell.set_ready(ready)
        server = CellServer(bench.cell, "127.0.0.1", 0, threads=1)
        servers.append(server)
        made.append(Replica(bench, "{}:{}".format(*server.address)))
    try:
        yield made
    finally:
        for server in servers:
            server.stop(1.0)


def verify(made: list[Replica], *more: str) -> int:
    words = [word for replica in made for word in ("--indexer", replica.address)]
    return command([*words, *FAST, *more])


def records(worker_id: int = 1, *, wrong: int = 0) -> list[bytes]:
    """Two events; `wrong` stands for one of the blocks."""
    source = RecordSource(worker_id=worker_id)
    return [
        source.events(store(1, 2, wrong or 3)),
        source.events(store(2, tier=pb.TIER_DISK)),
        source.heartbeat(),
    ]


def test_replicas_that_hold_the_same_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    told = records(1) + records(2)
    with replicas(told, records(2) + records(1), told) as made:
        assert verify(made) == 0
    line = capsys.readouterr().out
    assert line.startswith("whole: 3 replicas agree on 2 workers, 8 blocks")


def test_a_block_that_one_replica_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with replicas(records(1) + records(2), records(1) + records(2, wrong=0xBAD)) as made:
        assert verify(made) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("worker 2/0 device, event 2 of epoch 1000: ")
    assert f"1 only at {made[0].address}: 0000000000000003" in lines[0]
    assert f"1 only at {made[1].address}: 0000000000000bad" in lines[0]
    assert lines[1] == "differ: 1 of 2 workers"


def test_other_blocks_with_the_same_digest_differ_for_who_compares_them_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, other = RecordSource(), RecordSource()
    alike = [one.events(store(1, 2, 3)), one.heartbeat()]  # 1 ^ 2 ^ 3 = 1 ^ 4 ^ 5
    with replicas(alike, [other.events(store(1, 4, 5)), other.heartbeat()]) as made:
        assert verify(made) == 0
        assert "3 blocks, by count and digest; " in capsys.readouterr().out
        assert verify(made, "--full") == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"2 only at {made[0].address}: 0000000000000002, 0000000000000003" in lines[0]
    assert f"2 only at {made[1].address}: 0000000000000004, 0000000000000005" in lines[0]


def test_all_hashes_of_many_workers_are_compared_group_by_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvatlas_verify.comparison._FETCHED_BLOCKS_MAX", 10)
    told = [record for worker_id in range(1, 8) for record in records(worker_id)]
    with replicas(told, told) as made:
        assert verify(made, "--full") == 0
    line = capsys.readouterr().out
    assert line.startswith("whole: 2 replicas agree on 7 workers, 28 blocks, by every hash; ")


def test_a_replica_that_stays_behind_differs(capsys: pytest.CaptureFixture[str]) -> None:
    with replicas(records(), records()[:1]) as made:
        assert verify(made) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert f"{made[0].address} is at event 2" in line
    assert f"{made[1].address} is at event 1" in line


def test_a_worker_that_one_replica_does_not_know_differs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with replicas(records(1) + records(2), records(1)) as made:
        assert verify(made) == 1
    out = capsys.readouterr().out
    assert f"{made[1].address} does not know it; the address of its publisher is not known" in out


def test_a_replica_that_says_itself_that_it_is_not_whole_differs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = RecordSource()
    late = [source.events(store(1)), source.events(store(2)), source.events(store(3))]
    with replicas(late, [late[0], late[2]]) as made:
        made[1].bench.pass_ms(500)
        made[1].bench.feed(source.heartbeat())
        assert verify(made) == 1
    assert "and is not whole" in capsys.readouterr().out


def test_a_worker_that_one_replica_has_no_memory_for_differs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = [RecordSource().events(store(*range(1_000, 60_000)))]
    with replicas(told, told) as made:
        out = Bench(memory_bytes_max=600_000)
        out.feed(*told)
        out.pass_ms(300)
        out.cell.set_ready(True)
        server = CellServer(out.cell, "127.0.0.1", 0, threads=1)
        try:
            small = Replica(out, "{}:{}".format(*server.address))
            assert verify([made[0], small]) == 1
        finally:
            server.stop(1.0)
    line = capsys.readouterr().out.splitlines()[0]
    assert "1000 with 0 blocks, and has no memory for it" in line


def test_two_that_both_lack_a_silent_worker_are_not_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = RecordSource()
    told = [source.events(store(1)), source.events(store(2)), source.events(store(3))]
    with replicas([told[0], told[2]], [told[0], told[2]]) as made:
        for each in made:
            each.bench.pass_ms(3_000)
        assert verify(made) == 1
    assert "and is not whole" in capsys.readouterr().out


def test_what_moves_all_the_time_cannot_be_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RecordSource()
    told = [source.events(store(1)), source.events(store(2))]
    with replicas(told, told[:1]) as made:

        def move(_: float) -> None:
            made[0].bench.feed(source.events(store(source.last_event_id + 10)))

        monkeypatch.setattr("time.sleep", move)
        assert verify(made, "--tries", "6") == 2
    assert "changes too fast" in capsys.readouterr().out


def test_what_moves_now_and_then_is_compared_when_it_stands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = RecordSource()
    told = [ahead.events(store(number)) for number in range(1, 4)]
    with replicas(told, told[:1]) as made:
        rest = iter(told[1:])

        def move(_: float) -> None:
            made[1].bench.feed(*filter(None, [next(rest, None)]))

        monkeypatch.setattr("time.sleep", move)
        assert verify(made) == 0
    assert "whole: 2 replicas agree on 1 workers, 3 blocks" in capsys.readouterr().out


def test_who_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with replicas(records()) as made:
        pass
    assert verify([*made, *made]) == 2
    out = capsys.readouterr().out
    assert out.startswith(f"could not tell: {made[0].address}: UNAVAILABLE")


def test_a_replica_that_is_not_ready_cannot_be_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with replicas(records(), records(), ready=False) as made:
        assert verify(made) == 2
    assert "is not ready" in capsys.readouterr().out


class OddPublisher(publisher_pb2_grpc.PublisherServicer):
    """Speaks for worker 1, and says this of it."""

    def __init__(self, batch: bytes) -> None:
        self.batch = batch

    def ListWorkers(self, request: Any, context: Any) -> publisher_pb2.ListWorkersResponse:  # noqa: ANN401, N802 - as generated
        del request, context
        return publisher_pb2.ListWorkersResponse(workers=[pb.Worker(worker_id=1)])

    def Replay(self, request: Any, context: Any) -> Iterator[publisher_pb2.ReplayResponse]:  # noqa: ANN401, N802 - the same
        raise NotImplementedError

    def Snapshot(self, request: Any, context: Any) -> Iterator[publisher_pb2.SnapshotResponse]:  # noqa: ANN401, N802 - the same
        del request, context
        yield publisher_pb2.SnapshotResponse(records=[seal_record(self.batch)])


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (b"\xff\xff", "its snapshot cannot be read"),
        (pb.Batch(snapshot={"tier": 9, "parts": 1}).SerializeToString(), "an unknown tier"),  # pyright: ignore[reportArgumentType] - no tier
    ],
)
def test_a_publisher_whose_answer_makes_no_sense_is_named(
    batch: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    publisher_pb2_grpc.add_PublisherServicer_to_server(OddPublisher(batch), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with replicas(records()) as made:
        assert verify(made, "--publisher", address) == 2
    server.stop(None).wait()
    out = capsys.readouterr().out
    assert out.startswith(f"could not tell: {address}: ")
    assert says in out


def test_the_help_says_what_the_exit_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command(["--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "0 whole, 1 with the differences listed, 2 could not tell" in words


def test_one_side_alone_has_nothing_to_be_compared_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with replicas(records()) as made:
        assert verify(made) == 2
    assert "nothing to be compared with" in capsys.readouterr().out
