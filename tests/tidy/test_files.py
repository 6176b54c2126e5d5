"""Habits that a reader relies on: files that say why they exist, no foreign addresses."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
GENERATED = "libs/wire/src/kvatlas_wire/v1/"


def tracked(*suffixes: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [
        REPOSITORY / name
        for name in listing.splitlines()
        if name.endswith(suffixes)
        and not name.startswith(GENERATED)
        and (REPOSITORY / name).is_file()
    ]


def names(files: list[Path]) -> list[str]:
    return [file.relative_to(REPOSITORY).as_posix() for file in files]


def test_every_python_file_opens_with_why_it_exists() -> None:
    silent = [
        file
        for file in tracked(".py", ".pyi")
        if file.read_text().strip() and not file.read_text().lstrip("#! \n").startswith('"""')
    ]
    assert names(silent) == []


def test_every_rust_file_opens_with_why_it_exists() -> None:
    silent = [file for file in tracked(".rs") if not file.read_text().startswith("//!")]
    assert names(silent) == []


def test_unsafe_rust_says_why_it_is_sound_and_what_checks_it() -> None:
    wrong: list[Path] = []
    for file in tracked(".rs"):
        text = file.read_text()
        header = "\n".join(line for line in text.splitlines() if line.startswith("//!")).lower()
        if re.search(r"\bunsafe (\{|fn|impl)", text) and "sound" not in header:
            wrong.append(file)
    assert names(wrong) == []


def test_nothing_is_left_for_later_in_the_code() -> None:
    marker = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\b(todo|unimplemented)!\(")
    here = Path(__file__)
    found = [f for f in tracked(".py", ".rs", ".pyi") if f != here and marker.search(f.read_text())]
    assert names(found) == []


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml", "Cargo.toml"])
def test_pinned_releases_carry_no_download_addresses(name: str) -> None:
    assert "://" not in (REPOSITORY / name).read_text()


def test_the_python_lock_file_is_not_tracked() -> None:
    tracked_names = subprocess.run(
        ["git", "ls-files", "uv.lock"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout
    assert tracked_names == ""


def test_every_direct_dependency_is_pinned() -> None:
    pinned = {
        re.split(r"[=<>~!]", line)[0].strip().lower().replace("_", "-")
        for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    wanted: set[str] = set()
    for file in tracked("pyproject.toml"):
        document = tomllib.loads(file.read_text())
        extras: dict[str, list[str]] = document["project"].get("optional-dependencies", {})
        groups: dict[str, list[str]] = document.get("dependency-groups", {})
        for requirements in (
            document["project"]["dependencies"],
            *extras.values(),
            *groups.values(),
        ):
            wanted |= {re.split(r"[^A-Za-z0-9._-]", name)[0].lower() for name in requirements}
    ours = {name for name in wanted if name.startswith("kvatlas")}
    assert sorted(wanted - ours - pinned) == []
