"""The files that a replica starts from; each is complete or not there.

A file is written under another name, synced, and then renamed to
`state-<milliseconds since 1970>-<XXH3-64 of its bytes>.arrow`. So a crash, a full or a broken disk
costs only the file being written, and changed bytes are detected before any of them is used. The
newest two files are kept: the second is for the case that the newest cannot be read.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvatlas_native import Cell, Restore, Restored, RestoreRefused

FILES_KEPT = 2
_NAME = re.compile(r"state-(?P<unix_ms>\d{13,})-(?P<checksum>[0-9a-f]{16})\.arrow")
_PARTIAL = ".partial"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StateFile:
    """One file, as its name describes it."""

    path: Path
    unix_ms: int
    checksum: int


class StateFiles:
    """A directory of state files, which belongs to one replica.

    Failures are counted and logged, never raised: a replica works without files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.written = 0
        self.failed = 0
        self.unusable: Counter[str] = Counter()
        """Files that a start could not use, by reason."""
        self.newest_unix_ms: int | None = None
        """Time of the newest file that this process has written or started from."""
        self.newest_bytes = 0

    def newest_first(self) -> Sequence[StateFile]:
        """List the files; if the directory cannot be read, count that and return none."""
        try:
            names = [path.name for path in self.directory.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            self.unusable["unreadable"] += 1
            log.warning("state files in %s cannot be listed: %s", self.directory, error.strerror)
            return []
        matches = (_NAME.fullmatch(name) for name in names)
        files = [
            StateFile(
                self.directory / match.group(), int(match["unix_ms"]), int(match["checksum"], 16)
            )
            for match in matches
            if match is not None
        ]
        return sorted(files, key=lambda file: file.unix_ms, reverse=True)

    def restore(self, cell: Cell, unix_ms: Callable[[], int]) -> Restored | None:
        """Restore the newest usable state into an empty cell; None: there is none.

        Args:
            cell: a cell without workers.
            unix_ms: the wall clock, read after the file.
        """
        for file in self.newest_first():
            restore = Restore(cell)
            try:
                restore.read_file(file.path, file.checksum)
                restored = restore.finish(unix_ms())
            except RestoreRefused as refusal:
                reason, text = refusal.args
                self.unusable[reason] += 1
                log.warning("state file %s is skipped, it is %s: %s", file.path, reason, text)
            else:
                self.newest_unix_ms = file.unix_ms
                log.info(
                    "started from %s: %d workers, %d blocks",
                    file.path,
                    restored.workers,
                    restored.memberships,
                )
                return restored
        return None

    def check_writable(self) -> bool:
        """Report at the start, not minutes later, that files cannot be written here. Blocks."""
        partial = self._partial()
        try:
            self._prepare()
            partial.touch()
        except OSError as error:
            self._on_failure(error)
            return False
        self._remove(partial)
        return True

    def write(self, cell: Cell, unix_ms: int) -> bool:
        """Write the cell's state; False: it failed and was counted. Blocks; any thread may call it."""
        partial = self._partial()
        try:
            self._prepare()
            saved = cell.save(partial)
            number = self._next_number(unix_ms)
            final = self.directory / f"state-{number:013d}-{saved.checksum:016x}.arrow"
            partial.rename(final)
            self._sync_directory()
        except OSError as error:
            self._on_failure(error)
            self._remove(partial)
            return False
        self.written += 1
        self.newest_unix_ms, self.newest_bytes = unix_ms, saved.bytes
        for old in self.newest_first()[FILES_KEPT:]:
            self._remove(old.path)
        return True

    def _next_number(self, unix_ms: int) -> int:
        """Return the time for a file's name: later than all others, even if the clock was set back."""
        newest = self.newest_first()[:1]
        return max([unix_ms, *(file.unix_ms + 1 for file in newest)])

    def _partial(self) -> Path:
        return self.directory / f".state-{os.getpid()}{_PARTIAL}"

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._remove_partials()

    def _on_failure(self, error: OSError) -> None:
        self.failed += 1
        log.warning("state cannot be saved in %s: %s", self.directory, error.strerror or error)

    def _remove_partials(self) -> None:
        """Remove unfinished files of a killed process."""
        for path in self.directory.glob(f".state-*{_PARTIAL}"):
            self._remove(path)

    def _sync_directory(self) -> None:
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", path, error.strerror)
