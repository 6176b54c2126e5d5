"""The columns hold what an indexer tells about a worker: load and its age, capacity, role, labels."""

import numpy as np

from kvatlas_client import Load, WorkerInfo, WorkerKey, WorkersChange, WorkerState
from kvatlas_frontend.fleet.labels import NONE
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord
from kvatlas_frontend.indexer_client import fleet_change


def record(number: int, labels: dict[str, str], role: str = "") -> WorkerRecord:
    return WorkerRecord(
        WorkerKey(number, 0), WorkerState.LIVE, 1, f"http://e{number}:1", role=role, labels=labels
    )


def fleet(*records: WorkerRecord) -> Fleet:
    made = Fleet()
    made.apply(FleetChange(full=True, workers=records, removed=()))
    return made


def test_an_indexers_description_reaches_the_columns() -> None:
    """A heartbeat of 1.5 s ago, told at 100 s."""
    info = WorkerInfo(
        worker_id=7,
        dp_rank=0,
        state=WorkerState.LIVE,
        epoch=3,
        engine_url="http://e:1",
        publisher_rpc="p:1",
        role="decode",
        labels={"zone": "eu"},
        load=Load(requests_running=4, requests_waiting=2, kv_usage=0.25),
        capacity_blocks=1000,
        blocks=10,
        last_event_id=5,
        heartbeat_age_ms=1500,
    )
    made = Fleet()
    made.apply(fleet_change(WorkersChange(True, (info,), (), "replica:1"), now_s=100.0))
    columns, row = made.columns, made.rows[WorkerKey(7, 0)]
    assert (columns.requests_running[row], columns.requests_waiting[row]) == (4, 2)
    assert (columns.kv_usage[row], columns.load_told_s[row]) == (0.25, 98.5)
    assert (columns.capacity_blocks[row], columns.requests_elsewhere[row]) == (1000, 6)
    assert columns.role.value(row) == "decode"
    assert columns.labels["zone"].value(row) == "eu"


def test_without_a_load_the_figures_are_those_of_an_empty_row() -> None:
    made = fleet(record(1, {}))
    columns, row = made.columns, made.rows[WorkerKey(1, 0)]
    assert np.isneginf(columns.load_told_s).all()
    assert (columns.requests_running[row], columns.kv_usage[row]) == (0, 0.0)


def test_a_label_is_a_column_of_codes() -> None:
    made = fleet(record(1, {"zone": "eu"}), record(2, {"zone": "us"}), record(3, {}))
    column = made.columns.labels["zone"]
    rows = [made.rows[WorkerKey(number, 0)] for number in (1, 2, 3)]
    assert column.codes[rows].tolist() == [column.code("eu"), column.code("us"), NONE]
    assert not (made.columns.labels["rack"].codes != NONE).any()


def test_labels_follow_workers_that_change_leave_and_return() -> None:
    made = fleet(record(1, {"zone": "eu"}), record(2, {"zone": "eu"}))
    column = made.columns.labels["zone"]
    eu, us = column.code("eu"), column.code("us")
    made.apply(FleetChange(False, (record(1, {"zone": "us"}),), (WorkerKey(2, 0),)))
    assert sorted(column.codes.tolist(), reverse=True)[:2] == [max(us, NONE), NONE]
    made.apply(FleetChange(False, (record(2, {"zone": "eu"}),), ()))
    assert column.codes[made.rows[WorkerKey(2, 0)]] == eu


def test_labels_are_kept_when_the_table_grows() -> None:
    made = fleet(record(0, {"zone": "eu"}))
    column = made.columns.labels["zone"]
    many = tuple(record(number, {"zone": f"z{number % 3}"}) for number in range(100))
    made.apply(FleetChange(full=False, workers=many, removed=()))
    assert len(column.codes) == made.columns.rows >= 100
    for number in range(100):
        assert column.value(made.rows[WorkerKey(number, 0)]) == f"z{number % 3}"


def test_values_that_nobody_has_give_their_codes_back() -> None:
    """A label that is unique to each worker, as a pod's name, in a fleet that is replaced often."""
    made = Fleet()
    column = made.columns.labels["pod"]
    mine = column.code("mine")
    for number in range(1000):
        made.apply(FleetChange(True, (record(number, {"pod": f"p{number}"}),), ()))
    assert int(column.codes.max()) < 5
    assert column.code("mine") == mine
