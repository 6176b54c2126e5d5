"""What a publisher keeps on disk: two files a worker.

    kvatlas-{CELL}-{WORKER_ID}-{DP_RANK}.epoch         the highest epoch it ever used, as JSON
    kvatlas-{CELL}-{WORKER_ID}-{DP_RANK}.checkpoint    its mirror, see `checkpoint.py`

Publishers may share a directory: a file's name holds the cell and the worker that it is of, the
cell's with all but letters, digits and `_.-~` as `%XX`. Other files there are never touched. A file
is replaced whole: written aside, synced, renamed, and the directory synced, so a crash leaves the
old one or the new one. One that cannot be read as what its name says is moved to `NAME.corrupt`,
over an earlier one, and counts as missing.
"""

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote

from kvatlas_chassis import SettingsError
from kvatlas_events import Worker

VERSION = 1
EPOCH_MAX = (1 << 63) - 1
"""Far above every clock, with room for the epochs after it."""
_FILE_BYTES_MAX = 4_096


class StateCorrupt(ValueError):  # noqa: N818 - named for what it is
    """A file does not hold what its name says; the text says why."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose state a file is."""

    cell: str
    worker: Worker

    @property
    def name(self) -> str:
        """The stem of its files' names."""
        cell = quote(self.cell, safe="")
        return f"kvatlas-{cell}-{self.worker.worker_id}-{self.worker.dp_rank}"


def encode_epoch(owner: Owner, epoch: int) -> bytes:
    """Return what the file of an owner's highest epoch holds."""
    said = {
        "version": VERSION,
        "cell": owner.cell,
        "worker": str(owner.worker),
        "highest_epoch": epoch,
    }
    return json.dumps(said | {"sum": _sum(said)}).encode() + b"\n"


def decode_epoch(owner: Owner, content: bytes) -> int:
    """Return the epoch that `encode_epoch` was given.

    Raises:
        StateCorrupt: it was not given that, or what it made was damaged.
    """
    try:
        said: object = json.loads(content)
    except (ValueError, RecursionError):
        raise StateCorrupt("it is no JSON") from None
    if not isinstance(said, dict):
        raise StateCorrupt("it is no table")
    fields = cast("dict[str, Any]", said)
    found = fields.pop("sum", None)
    if fields.get("version") != VERSION:
        raise StateCorrupt(f"it is of version {fields.get('version')!r}, not {VERSION}")
    if found != _sum(fields):
        raise StateCorrupt("its checksum is wrong")
    if (fields.get("cell"), fields.get("worker")) != (owner.cell, str(owner.worker)):
        raise StateCorrupt("it is another worker's")
    epoch = fields.get("highest_epoch")
    if type(epoch) is not int or not 0 <= epoch <= EPOCH_MAX:
        raise StateCorrupt("its epoch is none")
    return epoch


def _sum(said: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(said, sort_keys=True).encode())


class StateDir:
    """A directory of states; nothing is kept in memory."""

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

    def read_epoch(self, owner: Owner) -> int | None:
        """Return the highest epoch that an owner used; None: nothing is known.

        Raises:
            StateCorrupt: the file held something else, and has been moved aside.
            OSError: it cannot be read, or not be moved.
        """
        name = f"{owner.name}.epoch"
        content = self.read(name, _FILE_BYTES_MAX)
        try:
            return None if content is None else decode_epoch(owner, content)
        except StateCorrupt as error:
            raise self.set_aside(name, error) from None

    def write_epoch(self, owner: Owner, epoch: int) -> None:
        """Keep an owner's highest epoch; on return it outlives a crash of the machine.

        Raises:
            OSError: it could not be written; an earlier one stays.
        """
        self.replace(f"{owner.name}.epoch", encode_epoch(owner, epoch))

    def read(self, name: str, bytes_max: int) -> bytes | None:
        """Return what a file holds, or one byte more than `bytes_max` of it; None: there is none.

        Raises:
            OSError: it cannot be read.
        """
        try:
            with (self.path / name).open("rb") as file:
                return file.read(bytes_max + 1)
        except FileNotFoundError:
            return None

    def set_aside(self, name: str, why: StateCorrupt) -> StateCorrupt:
        """Move a corrupt file aside and return what to tell of it.

        Raises:
            OSError: it cannot be moved.
        """
        path = self.path / name
        path.replace(path.with_name(f"{name}.corrupt"))
        return StateCorrupt(f"{path} is corrupt and was moved aside: {why}")

    def replace(self, name: str, *parts: bytes | memoryview) -> None:
        """Put a file of these parts in the place of whatever has that name, whole and durable.

        Raises:
            OSError: it could not be written.
        """
        aside = self.path / f"{name}.new"
        with aside.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path / name)
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
