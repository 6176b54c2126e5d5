"""Says what is being measured, to whoever waits for it."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Watch(Protocol):
    """Whoever is told how far the benchmark is."""

    def expect(self, steps: int) -> None:
        """So many more steps are to come."""
        ...

    def now(self, what: str) -> None:
        """This begins."""
        ...

    def done(self, steps: int = 1) -> None:
        """So many steps are over, or turned out not to be needed."""
        ...


class Bar:
    """A bar, and what runs now; of which stream."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=0)
        self._total = 0
        self._stream = ""

    def about(self, stream: str) -> None:
        """What follows is about this stream."""
        self._stream = stream

    def expect(self, steps: int) -> None:
        """So many more steps are to come."""
        self._total += steps
        self._progress.update(self._task, total=self._total)

    def now(self, what: str) -> None:
        """This begins."""
        self._progress.update(self._task, description=f"{self._stream}: {what}")

    def done(self, steps: int = 1) -> None:
        """So many steps are over, or turned out not to be needed."""
        self._progress.advance(self._task, steps)


@contextmanager
def watched(console: Console) -> Generator[Bar]:
    """A bar on the terminal for as long as the context lasts; gone at its end."""
    columns = (
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress)
