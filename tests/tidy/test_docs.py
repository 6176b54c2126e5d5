"""The documentation points to things that exist: files, make verbs, commands."""

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
GLOSSARY_WORDS_MAX = 30
ARCHITECTURE_LINES_MAX = 60
LINE_CHARACTERS = 120
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
def test_every_anchor_is_a_heading(page: Path) -> None:
    links: list[tuple[str, str]] = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text())
    local = [
        (page.parent / file if file else page, anchor)
        for file, anchor in links
        if "://" not in file
    ]
    assert [anchor for file, anchor in local if anchor not in anchors(file)] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings: list[str] = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_architecture_is_one_page() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    shown = re.sub(r"\]\([^)]*\)", "]", page).splitlines()
    lines = sum(max(1, -(-len(line) // LINE_CHARACTERS)) for line in shown)
    assert lines <= ARCHITECTURE_LINES_MAX


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_make_verb_it_shows_exists(page: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    shown = set(re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert [
        verb for verb in sorted(shown) if not re.search(rf"^{verb}:", makefile, re.MULTILINE)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_subcommand_it_shows_exists(page: Path) -> None:
    known = {
        name
        for file in REPOSITORY.glob("*/**/pyproject.toml")
        for name in tomllib.loads(file.read_text())["project"]
        .get("entry-points", {})
        .get("kvatlas.commands", {})
    }
    pattern = r"`kvatlas ([a-z][a-z-]+)|^kvatlas ([a-z][a-z-]+) +--"
    found: list[tuple[str, str]] = re.findall(pattern, page.read_text(), re.MULTILINE)
    shown = {quoted or started for quoted, started in found}
    assert sorted(shown - known) == []


def test_the_glossary_is_short_and_every_word_has_a_file() -> None:
    page = REPOSITORY / "docs" / "glossary.md"
    table = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    rows = [line.strip("|").split("|") for line in table[1:]]
    words = [word.strip() for word, _, _ in rows]
    assert 0 < len(words) <= GLOSSARY_WORDS_MAX
    assert len(set(words)) == len(words)
    links = [re.findall(r"\]\(([^)]+)\)", file) for _, _, file in rows]
    homeless = [
        word
        for word, found in zip(words, links, strict=True)
        if len(found) != 1 or not (page.parent / found[0]).is_file()
    ]
    assert homeless == []
