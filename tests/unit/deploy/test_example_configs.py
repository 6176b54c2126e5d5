"""The example configurations are read with the services' own settings, so they cannot drift."""

from pathlib import Path

import pytest

from kvatlas_chassis import ServiceSettings, load_settings
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_indexer.settings import IndexerSettings
from kvatlas_publisher.settings import PublisherSettings, engine_specs

FOLDER = Path(__file__).parents[3] / "deploy" / "config"

SETTINGS: dict[str, tuple[str, type[ServiceSettings]]] = {
    "indexer.yaml": ("indexer", IndexerSettings),
    "publisher.yaml": ("publisher", PublisherSettings),
    "publisher-node.yaml": ("publisher", PublisherSettings),
    "frontend.yaml": ("frontend", FrontendSettings),
}


def read(name: str) -> ServiceSettings:
    service, settings = SETTINGS[name]
    argv = ["--config", str(FOLDER / name)]
    return load_settings(settings, service=service, argv=argv, environ={}, description="")


def test_every_example_is_read_by_a_test() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(SETTINGS)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_an_example_is_what_its_service_takes(name: str) -> None:
    settings = read(name)
    assert str(settings.admin).startswith("0.0.0.0:")


def test_the_examples_make_one_cell() -> None:
    said = {(each["model"], each["block_size"]) for each in (dict(read(n)) for n in SETTINGS)}
    assert said == {("meta-llama/Llama-3.1-8B-Instruct", 16)}


def test_engines_of_a_node_take_what_they_leave_out_from_the_top() -> None:
    settings = read("publisher-node.yaml")
    assert isinstance(settings, PublisherSettings)
    specs = engine_specs(settings)
    assert [spec.worker_id for spec in specs] == [170, 171]
    assert {spec.cell for spec in specs} == {"prod-llama"}
    assert {spec.block_size for spec in specs} == {16}
