"""Plugins of other distributions: installed, found by entry point, checked, routed with."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path

import pytest

from kvatlas_frontend.routing.installed import GROUP, all_plugins
from kvatlas_frontend.routing.plugin import Kind
from kvatlas_frontend.routing.profile import ProfileError

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "zone-policy"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python in which the example is installed as a stranger would."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"),
            *("--disable-pip-version-check", "--target", str(folder / "site"), str(source)),
        ],
        check=True,
        capture_output=True,
    )
    return {**os.environ, "PYTHONPATH": str(folder / "site")}


def python(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )


def test_an_installed_policy_passes_the_check(installed: dict[str, str]) -> None:
    check = ("frontend", "--check", "--json", "--policy")
    policy = str(EXAMPLE / "zone-first.yaml")
    here = python(installed, "-c", _MAIN, *check, policy)
    assert (here.returncode, json.loads(here.stdout)) == (0, []), here.stderr
    without = python(dict(os.environ), "-c", _MAIN, *check, policy)
    assert without.returncode == 2
    assert [(each["code"], each["plugin"]) for each in json.loads(without.stdout)] == [
        ("unknown_plugin", "my-zone")
    ]


_MAIN = "import sys; from kvatlas_cli import main; sys.exit(main(sys.argv[1:]))"


def test_the_examples_own_tests_route_with_it(installed: dict[str, str]) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(EXAMPLE))
    done = python(installed, *words, "-c", os.devnull, "-o", "asyncio_mode=auto", str(EXAMPLE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


class Told(Distribution):
    """A distribution that is not installed."""

    def read_text(self, filename: str) -> str | None:
        return (
            "Metadata-Version: 2.1\nName: odd-plugins\nVersion: 3.1\n"
            if filename == "METADATA"
            else None
        )

    def locate_file(self, path: object) -> Path:  # type: ignore[override] - never asked
        raise NotImplementedError


def point(value: str) -> EntryPoint:
    made = EntryPoint("odd", value, GROUP)
    vars(made).update(dist=Told())
    return made


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module:SPECS", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("os:no_such_name", "AttributeError"),
        ("os:sep", "TypeError: os:sep is no PluginSpec and no sequence of them"),
        ("os:getpid", "TypeError: os:getpid is no PluginSpec"),
        (
            "kvatlas_frontend.routing.plugins.pickers:SPECS",
            "ValueError: a pick plugin called 'lowest-cost' is registered",
        ),
    ],
)
def test_a_plugin_that_cannot_be_loaded_names_its_distribution(value: str, said: str) -> None:
    with pytest.raises(ProfileError) as raised:
        all_plugins([point(value)])
    (problem,) = raised.value.problems
    assert (problem.code, problem.plugin) == ("plugin_not_loaded", "odd")
    assert "distribution odd-plugins 3.1" in problem.text
    assert said in problem.text


def test_without_entry_points_there_are_the_built_in_plugins() -> None:
    assert "lowest-cost" in all_plugins([]).names(Kind.PICK)
