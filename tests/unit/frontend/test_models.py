"""Which models the engines serve."""

import pytest

from kvatlas_client import WorkerKey, WorkerState
from kvatlas_frontend.fleet.models import ModelCatalog
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord

ONE, TWO = WorkerKey(1, 0), WorkerKey(2, 0)


def catalog(*keys: WorkerKey) -> tuple[Fleet, ModelCatalog]:
    fleet = Fleet()
    tell(fleet, *keys)
    return fleet, ModelCatalog("base", fleet)


def tell(fleet: Fleet, *keys: WorkerKey) -> None:
    records = tuple(WorkerRecord(key, WorkerState.LIVE, 1, "http://e:1") for key in keys)
    fleet.apply(FleetChange(full=True, workers=records, removed=()))


def served(*names: str, parent: str | None = None) -> dict[str, object]:
    return {"data": [{"id": name, "object": "model", "parent": parent} for name in names]}


def test_the_base_model_is_known_before_any_engine_has_answered() -> None:
    _, models = catalog()
    for name in ("base", None):
        route = models.route(name)
        assert route is not None
        assert (route.name, route.lora_name, route.rows) == ("base", None, None)
    assert models.route("other") is None
    assert [model["id"] for model in models.listing()] == ["base"]


def test_an_adapter_is_served_where_it_was_listed() -> None:
    fleet, models = catalog(ONE, TWO)
    models.learn(ONE, served("base"))
    models.learn(TWO, served("poet", parent="base"))
    route = models.route("poet")
    assert route is not None
    assert route.lora_name == "poet"
    assert route.rows is not None
    assert [bool(route.rows[fleet.rows[key]]) for key in (ONE, TWO)] == [False, True]


def test_another_name_of_the_base_model_is_no_adapter() -> None:
    _, models = catalog(ONE)
    models.learn(ONE, served("base", "alias"))
    route = models.route("alias")
    assert route is not None
    assert (route.name, route.lora_name) == ("alias", None)


def test_an_adapter_that_is_unloaded_or_whose_worker_left_is_unknown() -> None:
    fleet, models = catalog(ONE, TWO)
    models.learn(ONE, served("poet", parent="base"))
    models.learn(TWO, served("clerk", parent="base"))
    models.learn(ONE, served("base"))
    assert models.route("poet") is None
    assert models.route("clerk") is not None
    tell(fleet, ONE)
    assert models.route("clerk") is None
    assert [model["id"] for model in models.listing()] == ["base"]


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"data": None}, {"data": [5, {}, {"id": 7}]}, {"data": "x"}]
)
def test_an_answer_that_lists_nothing_adds_nothing(answer: object) -> None:
    _, models = catalog(ONE)
    models.learn(ONE, answer)
    assert models.route("base") is not None
    assert [model["id"] for model in models.listing()] == ["base"]


def test_engines_paths_are_not_shown() -> None:
    _, models = catalog(ONE)
    entry: dict[str, object] = {"id": "base", "root": "/models/secret", "max_model_len": 4096}
    models.learn(ONE, {"data": [entry]})
    assert models.listing() == [{"id": "base", "max_model_len": 4096}]
