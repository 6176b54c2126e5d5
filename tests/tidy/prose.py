"""Finds the English of the repository: comments, docstrings, help texts, pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PYTHON = (".py", ".pyi")
RUST_OR_PROTO = (".rs", ".proto")


class Text(NamedTuple):
    """One text of a file, as one line: a comment, a docstring, a field's description, a paragraph."""

    line: int
    words: str


def texts(file: Path) -> Iterator[Text]:
    """Yield every text of a file, by the file's kind."""
    source = file.read_text()
    if file.suffix in PYTHON:
        yield from _python(source)
    elif file.suffix in RUST_OR_PROTO:
        yield from _comments(source, r"//[/!]?(?=[ \n])")
    elif file.suffix == ".md":
        yield from _pages(source)
    else:
        yield from _comments(source, r"#+(?=[ \n])")


def sentences(text: Text) -> list[str]:
    """Return the sentences of a text."""
    return re.split(r"(?<=[.!?:])\s+(?=[A-Z])", text.words)


def _python(source: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for paragraph in node.value.split("\n\n"):
                yield _text(node.lineno, paragraph)
    block: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != last + 1:
            yield _text(last, " ".join(block))
            block = []
        block.append(token.string.lstrip("#"))
        last = token.start[0]
    if block:
        yield _text(last, " ".join(block))


def _comments(source: str, marker: str) -> Iterator[Text]:
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        opening = re.search(rf"(?:^|\s){marker}", line + "\n")
        words = "" if opening is None else line[opening.end() :].strip()
        alone = opening is not None and not line[: opening.start()].strip()
        if words and alone:
            block.append(words)
            continue
        if block:
            yield _text(number - 1, " ".join(block))
            block = []
        if words:
            yield _text(number, words)
    # A text in quotes: an error, a log message, a flag's help, a metric's help.
    for number, line in enumerate(source.splitlines(), 1):
        yield from (_text(number, quoted) for quoted in re.findall(r'"([^"]* [^"]*)"', line))


def _pages(source: str) -> Iterator[Text]:
    code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("```"):
            code = not code
        if not code and not line.startswith("#"):
            cells = (
                line.split("|")
                if line.startswith("|")
                else [re.sub(r"^\s*([-*]|\d+\.) ", "", line)]
            )
            yield from (_text(number, cell.replace("**", "")) for cell in cells)


def _text(line: int, words: str) -> Text:
    return Text(line, re.sub(r"\s+", " ", words).strip())
