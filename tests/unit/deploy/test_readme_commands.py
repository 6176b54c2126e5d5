"""The commands that the README prints for two machines are what the services take.

`tests/e2e/test_readme.py` runs the block for one machine; these need two, so their flags are parsed.
"""

import re
import shlex
from pathlib import Path

import pytest

from kvatlas_chassis import ServiceSettings, load_settings
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_indexer.settings import IndexerSettings
from kvatlas_publisher.settings import PublisherSettings, engine_specs

SETTINGS: dict[str, type[ServiceSettings]] = {
    "frontend": FrontendSettings,
    "indexer": IndexerSettings,
    "publisher": PublisherSettings,
}


def commands() -> list[list[str]]:
    section = (Path(__file__).parents[3] / "README.md").read_text().split("\n### On two machines\n")
    blocks = re.findall(r"^```bash\n(.*?)^```$", section[1], re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [words[1:] for line in lines if (words := shlex.split(line))[0] == "kvatlas"]


def read(words: list[str]) -> ServiceSettings:
    service, *argv = words
    return load_settings(SETTINGS[service], service=service, argv=argv, environ={}, description="")


def test_every_service_has_a_command() -> None:
    assert sorted(words[0] for words in commands()) == sorted(SETTINGS)


@pytest.mark.parametrize("words", commands(), ids=lambda words: words[0])
def test_a_command_is_what_its_service_takes(words: list[str]) -> None:
    settings = read(words)
    assert dict(settings)["listen"].host == "0.0.0.0"
    if isinstance(settings, PublisherSettings):
        (engine,) = engine_specs(settings)
        assert engine.advertised_url.startswith("http://10.0.0.1:")


def test_the_commands_make_one_cell() -> None:
    cells = {
        (settings["cell"], settings["log"])
        for settings in map(dict, map(read, commands()))
        if "cell" in settings
    }
    assert cells == {("mine", ("redis://10.0.0.2:6379",))}
    models = {(dict(read(w))["model"], dict(read(w))["block_size"]) for w in commands()}
    assert models == {("Qwen/Qwen3-8B", 16)}
