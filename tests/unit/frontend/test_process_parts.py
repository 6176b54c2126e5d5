"""The pure parts of a frontend of several processes: rows, metrics, restarts, messages, memory."""

import asyncio
import os
import socket
from functools import partial

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from kvatlas_chassis import HostPort
from kvatlas_client import WorkerKey, WorkerState
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord
from kvatlas_frontend.metrics import SUMMED_GAUGES, FrontendMetrics
from kvatlas_frontend.processes.control import (
    ClaimRow,
    Down,
    Family,
    GrantRow,
    ReleaseRow,
    Sample,
    Start,
    Status,
    Stop,
    frame,
    messages_up,
    receive,
)
from kvatlas_frontend.processes.memory import LOADS, ROWS, UNSHARED, SharedMemory
from kvatlas_frontend.processes.metrics import Ended, as_metric, families, merged
from kvatlas_frontend.processes.restarts import Backoff
from kvatlas_frontend.processes.rows import Grant, RowTable
from kvatlas_frontend.processes.shared_load import SharedLoadTracker
from kvatlas_frontend.settings import FrontendSettings

A, B, C = (WorkerKey(number, 0) for number in range(3))


def test_a_worker_has_the_same_row_in_all_processes() -> None:
    table = RowTable(4)
    assert table.claim((0, 0), A) == [Grant((0, 0), 0)]
    assert table.claim((0, 1), B) == [Grant((0, 1), 1)]
    assert table.claim((1, 0), B) == [Grant((1, 0), 1)]
    assert table.claim((1, 1), A) == [Grant((1, 1), 0)]


def test_a_row_goes_to_another_worker_once_no_process_holds_it() -> None:
    table = RowTable(2)
    table.claim((0, 0), A)
    table.claim((1, 0), A)
    table.claim((0, 1), B)
    assert table.release((0, 0)) == []
    assert table.claim((0, 2), C) == []
    assert table.waiting == 1
    assert table.release((1, 0)) == [Grant((0, 2), 0)]
    assert table.waiting == 0


def test_all_who_wait_for_a_worker_get_its_row_together() -> None:
    table = RowTable(1)
    table.claim((0, 0), A)
    table.claim((0, 1), B)
    table.claim((1, 0), B)
    table.claim((1, 1), C)
    assert table.waiting == 2
    assert table.release((0, 0)) == [Grant((0, 1), 0), Grant((1, 0), 0)]
    assert table.waiting == 1
    assert table.release((1, 1)) == []
    assert table.waiting == 0


def test_a_process_that_ended_holds_nothing() -> None:
    table = RowTable(2)
    table.claim((0, 0), A)
    table.claim((1, 0), A)
    table.claim((1, 1), B)
    table.claim((0, 1), C)
    assert table.ended(1) == [Grant((0, 1), 1)]
    assert table.claim((1, 0), A) == [Grant((1, 0), 0)]  # its next life counts from 0 again


def test_a_worker_that_came_back_while_requests_are_in_flight_has_one_row() -> None:
    table = RowTable(2)
    table.claim((0, 0), A)
    assert table.claim((0, 1), A) == [Grant((0, 1), 0)]
    assert table.release((0, 0)) == []
    assert table.claim((0, 2), B) == [Grant((0, 2), 1)]


class Registry:
    """The metrics of one process, in all kinds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counter = Counter("c", "A counter", ["kind"], registry=self.registry)
        self.summed = Gauge("in_flight", "A gauge that adds up", registry=self.registry)
        self.highest = Gauge("known", "Another gauge", ["state"], registry=self.registry)
        self.times = Histogram("h", "A histogram", buckets=(1, 2), registry=self.registry)


def value(all_families: list[Family], name: str, **labels: str) -> float | None:
    found = [
        sample.value
        for family in all_families
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) <= 1
    return found[0] if found else None


def test_each_kind_of_metric_has_its_own_sum() -> None:
    one, two = Registry(), Registry()
    one.counter.labels("x").inc(3)
    two.counter.labels("x").inc(4)
    two.counter.labels("y").inc(5)
    one.summed.set(2)
    two.summed.set(3)
    one.highest.labels("live").set(8)
    two.highest.labels("live").set(7)
    one.times.observe(0.5)
    two.times.observe(1.5)
    two.times.observe(9)
    both = merged(
        [families(one.registry), families(two.registry)], summed_gauges=frozenset({"in_flight"})
    )
    assert value(both, "c_total", kind="x") == 7
    assert value(both, "c_total", kind="y") == 5
    assert value(both, "in_flight") == 5
    assert value(both, "known", state="live") == 8
    assert [value(both, "h_bucket", le=le) for le in ("1.0", "2.0", "+Inf")] == [1, 2, 3]
    assert (value(both, "h_count"), value(both, "h_sum")) == (3, 11)
    created = [value(families(each.registry), "h_created") for each in (one, two)]
    assert value(both, "h_created") == min(time for time in created if time is not None)


def test_what_a_process_counted_outlives_it_and_its_gauges_do_not() -> None:
    ended = Ended()
    for _ in range(2):
        life = Registry()
        life.counter.labels("x").inc(3)
        life.times.observe(1)
        life.summed.set(4)
        life.highest.labels("live").set(8)
        ended.add(families(life.registry))
    now = Registry()
    now.counter.labels("x").inc(1)
    all_lives = merged([ended.families, families(now.registry)], summed_gauges={"in_flight"})
    assert value(all_lives, "c_total", kind="x") == 7
    assert value(all_lives, "h_count") == 2
    assert value(all_lives, "in_flight") == 0
    assert value(all_lives, "known", state="live") is None


def test_the_sum_of_one_process_prints_as_the_process_itself() -> None:
    metrics = FrontendMetrics(CollectorRegistry())
    metrics.count_request("chat", 200)
    metrics.in_flight.set(3)
    metrics.workers.labels("live").set(2)
    metrics.first_byte.observe(0.3)

    class Sum(Collector):
        def collect(self) -> list[object]:  # pyright: ignore[reportIncompatibleMethodOverride] - what it yields is printed
            part = families(metrics.registry)
            return [as_metric(family) for family in merged([part], summed_gauges=SUMMED_GAUGES)]

    registry = CollectorRegistry()
    registry.register(Sum())
    assert generate_latest(registry) == generate_latest(metrics.registry)


def test_every_summed_gauge_is_a_gauge_of_the_frontend() -> None:
    known = {
        family.name: family.kind
        for family in families(FrontendMetrics(CollectorRegistry()).registry)
    }
    assert {known.get(name) for name in SUMMED_GAUGES} == {"gauge"}


def test_restarts_wait_longer_each_time_and_a_long_life_forgives() -> None:
    backoff = Backoff()
    pauses = [backoff.pause_s(1.0) for _ in range(8)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.pause_s(60.0) == 0.1
    assert backoff.pause_s(59.0) == 0.2


def test_settings_reach_a_process_as_they_are() -> None:
    settings = FrontendSettings(
        indexer=(HostPort("::1", 7400), HostPort("indexer", 7400)),
        model="m",
        block_size=16,
        processes=3,
        listen=HostPort("::", 0),
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        messages: list[Down] = [Start(settings.model_dump_json(), 2, 3), Stop(), GrantRow(1, 2)]
        for message in messages:
            ours.sendall(frame(message))
        start, *others = [receive(theirs) for _ in messages]
    assert isinstance(start, Start)
    assert FrontendSettings.model_validate_json(start.settings) == settings
    assert (start.process, start.processes) == (2, 3)
    assert others == messages[1:]


async def test_messages_end_with_the_process_even_in_the_middle_of_one() -> None:
    sample = Sample("n", {"le": "+Inf"}, float("inf"))
    said = [
        ClaimRow(0, 2**64 - 1, 2**32 - 1),
        Status(1, ["why"], [Family("n", "text", "counter", [sample])]),
    ]
    reader = asyncio.StreamReader()
    for message in said:
        reader.feed_data(frame(message))
    reader.feed_data(frame(said[0])[:-1])
    reader.feed_eof()
    assert [message async for message in messages_up(reader)] == said


def test_the_memory_is_one_for_all_who_map_it() -> None:
    ours = SharedMemory.create(2)
    theirs = SharedMemory(os.dup(ours.fd), 2)
    assert ours.load.shape == (2, LOADS, ROWS + 1)
    assert ours.connections.shape == (2, 8)
    ours.load[1, 2, UNSHARED] = -5
    ours.load[0, 0, 0] = 7
    ours.connections[:] = 9
    assert theirs.load[1, 2, UNSHARED] == -5
    assert theirs.load[0, 0, 0] == 7
    theirs.clear(1)
    theirs.set_hung(0, is_hung=True)
    assert not ours.load[1].any()
    assert not ours.connections[1].any()
    assert ours.connections[0].tolist() == [9, 9, 9, 1, 9, 9, 9, 9]
    assert np.count_nonzero(ours.load) == 1
    ours.close()
    theirs.close()


def test_a_worker_that_came_back_counts_with_the_requests_of_before() -> None:
    """It has two rows in the process that had requests on it, and one shared row."""
    memory = SharedMemory.create(2)
    table = RowTable(4)
    fleets: list[Fleet] = []
    for process in range(2):
        asked: list[ClaimRow | ReleaseRow] = []
        fleet = Fleet(partial(SharedLoadTracker, memory=memory, process=process, ask=asked.append))
        tracker = fleet.tracker
        assert isinstance(tracker, SharedLoadTracker)
        record = WorkerRecord(A, WorkerState.LIVE, 1, "http://engine:1", None)
        for came_back in range(2 if process == 0 else 1):
            if came_back:
                fleet.apply(FleetChange(full=False, workers=(), removed=(A,)))
            fleet.apply(FleetChange(full=False, workers=(record,), removed=()))
            claim = asked.pop()
            assert isinstance(claim, ClaimRow)
            for grant in table.claim((process, claim.number), A):
                tracker.granted(claim.number, grant.row)
            tracker.begin(fleet.rows[A], prompt_tokens=10, cached_tokens=4)
        fleets.append(fleet)
    for fleet in fleets:
        fleet.tracker.refresh()
        columns, row = fleet.columns, fleet.rows[A]
        assert columns.requests[row] == 3
        assert columns.prefill_tokens[row] == 18
        assert columns.active_tokens[row] == 30
    fleets[1].tracker.reported(fleets[1].rows[A], 5)
    assert fleets[1].columns.requests_elsewhere[fleets[1].rows[A]] == 2
    memory.close()
