"""Habits of the English: how no sentence begins, and docstrings that say more than a name."""

import ast
import re
from pathlib import Path

from tests.tidy.prose import sentences, texts
from tests.tidy.test_files import REPOSITORY, tracked

KINDS = (".py", ".pyi", ".rs", ".proto", ".md", ".toml", ".yaml")
# Such a sentence names its subject late, so it is read twice. A question may begin so.
INVERTED = re.compile(r"(Of|Whoever|What) ")
MAYBE = re.compile(r"\b(Of|Whoever|What)\s")


def place(file: Path, line: int) -> str:
    return f"{file.relative_to(REPOSITORY).as_posix()}:{line}"


def test_the_finder_finds_what_it_should(tmp_path: Path) -> None:
    def found(name: str, source: str) -> list[str]:
        file = tmp_path / name
        file.write_text(source)
        return [s for text in texts(file) for s in sentences(text) if INVERTED.match(s)]

    assert found("a.py", '"""Fine. What is not."""\nx = 1  # Of one.\n') == [
        "What is not.",
        "Of one.",
    ]
    assert found("a.py", 'x = f("Whoever asks")\n"""Fine.\n\nOf two."""\n') == [
        "Of two.",
        "Whoever asks",
    ]
    assert found("a.rs", "/// Fine, as\n/// What\nfn f() {} // What it is\n") == ["What it is"]
    assert found("a.proto", "  uint32 a = 1;  // Of b\n") == ["Of b"]
    assert found("a.md", "## What it is\n- **What** it is\n\n| What | Of it |\n") == [
        "What it is",
        "Of it",
    ]


def test_no_sentence_begins_with_of_or_whoever_or_what() -> None:
    found = [
        f"{place(file, text.line)}: {sentence}"
        for file in tracked(*KINDS)
        if file != Path(__file__) and MAYBE.search(file.read_text())
        for text in texts(file)
        for sentence in sentences(text)
        if INVERTED.match(sentence) and not sentence.endswith("?")
    ]
    assert found == []


def test_no_docstring_only_repeats_the_name() -> None:
    """A function's words are its name's, in any order, with small words between."""
    small = {"a", "an", "the", "of", "its", "this", "is", "are", "return", "returns"}
    found: list[str] = []
    for file in tracked(".py", ".pyi"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            docstring = ast.get_docstring(node)
            if docstring is None:
                continue
            said = set(re.findall(r"[a-z0-9]+", docstring.lower())) - small
            name = set(re.findall(r"[a-z0-9]+", re.sub(r"([A-Z])", r"_\1", node.name).lower()))
            if said <= name:
                found.append(f"{place(file, node.lineno)}: {node.name}: {docstring}")
    assert found == []
