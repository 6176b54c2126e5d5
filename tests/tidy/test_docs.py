"""What the documentation points to exists: files it links, make verbs and commands it shows."""

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    page
    for folder in (".", "docs", "deploy", "libs", "services", "loadtest")
    for page in (REPOSITORY / folder).glob("*.md" if folder == "." else "**/*.md")
    if ".venv" not in page.parts and "target" not in page.parts
)


def page_id(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def test_there_are_pages() -> None:
    assert REPOSITORY / "README.md" in PAGES
    assert REPOSITORY / "docs" / "architecture.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    local = [link.split("#")[0] for link in links if "://" not in link and not link.startswith("#")]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_make_verb_it_shows_exists(page: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    shown = set(re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert [
        verb for verb in sorted(shown) if not re.search(rf"^{verb}:", makefile, re.MULTILINE)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_subcommand_it_shows_exists(page: Path) -> None:
    known = {point.name for point in entry_points(group="kvatlas.commands")}
    pattern = r"`kvatlas ([a-z][a-z-]+)|^kvatlas ([a-z][a-z-]+) +--"
    found: list[tuple[str, str]] = re.findall(pattern, page.read_text(), re.MULTILINE)
    shown = {quoted or started for quoted, started in found}
    assert sorted(shown - known) == []
