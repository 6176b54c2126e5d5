"""Shows what is being measured, and how much is left."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class ProgressListener(Protocol):
    """Receives the progress of the benchmark."""

    def expect(self, steps: int) -> None:
        """Add `steps` to the total."""
        ...

    def now(self, what: str) -> None:
        """Name the step that begins."""
        ...

    def done(self, steps: int = 1) -> None:
        """Count `steps` as done, or as not needed."""
        ...


class ProgressBar:
    """A progress bar with the current step and its stream."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=0)
        self._total = 0
        self._stream = ""

    def about(self, stream: str) -> None:
        """Name the stream of the following steps."""
        self._stream = stream

    def expect(self, steps: int) -> None:
        """Add `steps` to the total."""
        self._total += steps
        self._progress.update(self._task, total=self._total)

    def now(self, what: str) -> None:
        """Name the step that begins."""
        self._progress.update(self._task, description=f"{self._stream}: {what}")

    def done(self, steps: int = 1) -> None:
        """Count `steps` as done, or as not needed."""
        self._progress.advance(self._task, steps)


@contextmanager
def progress_bar(console: Console) -> Generator[ProgressBar]:
    """A progress bar for as long as the context lasts."""
    columns = (
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield ProgressBar(progress)
