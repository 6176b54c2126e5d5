"""The state directory: two files a worker.

    kvatlas-{CELL}-{WORKER_ID}-{DP_RANK}.epoch         the highest epoch it ever used, as JSON
    kvatlas-{CELL}-{WORKER_ID}-{DP_RANK}.checkpoint    its mirror, see `checkpoint_file.py`

Publishers may share a directory, because a file's name holds its cell and worker. In the cell's
name, all characters but letters, digits and `_.-~` are written as `%XX`. Other files are never
touched. A file is replaced whole: written under another name, synced, renamed, and the directory
synced, so a crash leaves the old file or the new one. A file that cannot be read as what its name
says is moved to `NAME.corrupt`, over an earlier one, and counts as missing.
"""

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote

from kvatlas_chassis import SettingsError
from kvatlas_events import WorkerKey

VERSION = 1
EPOCH_MAX = (1 << 63) - 1
"""Far above every clock, with room for the epochs after it."""
_EPOCH_FILE_BYTES_MAX = 4_096


class StateCorrupt(ValueError):  # noqa: N818 - named for what it is
    """A file does not hold what its name says; the text says why."""


@dataclass(frozen=True, slots=True)
class CellWorker:
    """A worker, and the cell that it belongs to."""

    cell: str
    worker: WorkerKey

    @property
    def file_stem(self) -> str:
        """The name of its files without their extension."""
        cell = quote(self.cell, safe="")
        return f"kvatlas-{cell}-{self.worker.worker_id}-{self.worker.dp_rank}"


def encode_epoch(worker: CellWorker, epoch: int) -> bytes:
    """Return the content of a worker's epoch file."""
    fields = {
        "version": VERSION,
        "cell": worker.cell,
        "worker": str(worker.worker),
        "highest_epoch": epoch,
    }
    return json.dumps(fields | {"sum": _checksum(fields)}).encode() + b"\n"


def decode_epoch(worker: CellWorker, content: bytes) -> int:
    """Return the epoch in the content of a worker's epoch file.

    Raises:
        StateCorrupt: it is damaged, or another worker's.
    """
    try:
        document: object = json.loads(content)
    except (ValueError, RecursionError):
        raise StateCorrupt("it is not JSON") from None
    if not isinstance(document, dict):
        raise StateCorrupt("it is not a JSON object")
    fields = cast("dict[str, Any]", document)
    checksum = fields.pop("sum", None)
    if fields.get("version") != VERSION:
        raise StateCorrupt(f"it is of version {fields.get('version')!r}, not {VERSION}")
    if checksum != _checksum(fields):
        raise StateCorrupt("its checksum is wrong")
    if (fields.get("cell"), fields.get("worker")) != (worker.cell, str(worker.worker)):
        raise StateCorrupt("it is another worker's")
    epoch = fields.get("highest_epoch")
    if type(epoch) is not int or not 0 <= epoch <= EPOCH_MAX:
        raise StateCorrupt("its epoch is impossible")
    return epoch


def _checksum(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())


class StateDir:
    """Reads and replaces the files of a state directory; it caches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path) -> Self:
        """Make the directory if there is none, and try to write there.

        Raises:
            SettingsError: it cannot be used.
        """
        state = cls(path)
        probe = f".kvatlas-{os.getpid()}.probe"
        try:
            path.mkdir(parents=True, exist_ok=True)
            state.replace(probe, b"")
            (path / probe).unlink()
        except OSError as error:
            raise SettingsError(
                f"kvatlas publisher: --state-dir {path} cannot be written: {error.strerror}"
            ) from None
        return state

    def read_epoch(self, worker: CellWorker) -> int | None:
        """Return the highest epoch that a worker used; None: there is no file.

        Raises:
            StateCorrupt: the file was damaged, and has been moved aside.
            OSError: it cannot be read, or not be moved.
        """
        name = f"{worker.file_stem}.epoch"
        content = self.read(name, _EPOCH_FILE_BYTES_MAX)
        try:
            return None if content is None else decode_epoch(worker, content)
        except StateCorrupt as error:
            raise self.set_aside(name, error) from None

    def write_epoch(self, worker: CellWorker, epoch: int) -> None:
        """Write a worker's highest epoch; on return it outlives a crash of the machine.

        Raises:
            OSError: it could not be written; an earlier one stays.
        """
        self.replace(f"{worker.file_stem}.epoch", encode_epoch(worker, epoch))

    def read(self, name: str, bytes_max: int) -> bytes | None:
        """Return a file's content, at most `bytes_max` + 1 bytes; None: there is no file.

        Raises:
            OSError: it cannot be read.
        """
        try:
            with (self.path / name).open("rb") as file:
                return file.read(bytes_max + 1)
        except FileNotFoundError:
            return None

    def set_aside(self, name: str, error: StateCorrupt) -> StateCorrupt:
        """Move a corrupt file aside, and return the error to raise.

        Raises:
            OSError: it cannot be moved.
        """
        path = self.path / name
        path.replace(path.with_name(f"{name}.corrupt"))
        return StateCorrupt(f"{path} is corrupt and was moved aside: {error}")

    def replace(self, name: str, *parts: bytes | memoryview) -> None:
        """Replace a file by the concatenation of `parts`, whole and durably.

        Raises:
            OSError: it could not be written; an earlier one stays.
        """
        new = self.path / f"{name}.new"
        with new.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / name)
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
