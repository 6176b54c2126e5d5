"""A table of text, for the terminal and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True)
class TextTable:
    """One table of text.

    Attributes:
        columns: titles; the first column names the row, and the last may be a note.
        rows: cells; as many in each row as there are columns.
        strong: numbers of the rows in bold.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    has_note: bool = False
    strong: frozenset[int] = frozenset()

    def table(self) -> Table:
        """The table for a terminal."""
        table = Table(title=escape(self.title), title_justify="left")
        first, *others = self.columns
        table.add_column(first, no_wrap=True)
        for title in others[:-1] if self.has_note else others:
            table.add_column(title, justify="right")
        if self.has_note:
            table.add_column(others[-1], style="dim")
        for number, row in enumerate(self.rows):
            style = "bold" if number in self.strong else None
            table.add_row(*(escape(cell) for cell in row), style=style)
        return table

    def markdown(self) -> str:
        """The table as a section in Markdown."""
        numbers = len(self.columns) - 1 - self.has_note
        rule = ("---", *("---:" for _ in range(numbers)), *(("---",) if self.has_note else ()))
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.columns, rule, *self.rows)]
        return "\n".join([f"### {self.title}", "", *lines])


def page(paragraphs: Sequence[str], tables: Sequence[TextTable]) -> str:
    """A page in Markdown."""
    return "\n\n".join([*paragraphs, *(table.markdown() for table in tables)]) + "\n"
