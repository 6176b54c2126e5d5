"""The event log as services see it: who appends, who reads, and what can go wrong.

A log takes records as opaque bytes, keeps the order of each writer, and gives every reader all of
them. It may give a record twice, but never two records of one writer in the wrong order. It may
forget its oldest records: then the reader is told (`LogSlice.trimmed`), and the sequencer recovers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvatlas_wire import WorkerKey


class LogUnavailable(Exception):  # noqa: N818 - the contract's name
    """The log does not answer, and the records may or may not be stored: append the same ones again.

    The message names the address, without credentials, and the failure.
    """


class RecordsRejected(Exception):  # noqa: N818 - the contract's name
    """The receiver will never take these records; the message says why."""


class Fenced(RecordsRejected):
    """The worker already has a later epoch.

    The epoch is another publisher's, or the caller's own, known from another transport.
    """

    def __init__(
        self, name: str, worker: WorkerKey, epoch: int, rival_epoch: int, *, rival: str = ""
    ) -> None:
        theirs = f"{rival_epoch} of publisher {rival}" if rival else f"{rival_epoch}"
        super().__init__(f"{name}: worker {worker} is in epoch {theirs} already; ours is {epoch}")
        self.worker = worker
        self.epoch = epoch
        self.rival_epoch = rival_epoch


@dataclass(frozen=True, slots=True)
class Appended:
    """Acknowledgement of one `append`."""

    needs_snapshot: frozenset[WorkerKey] = frozenset()
    """Workers that the receiver can continue only from a snapshot."""
    identity: str | None = None
    """Identity of the log, if it has one. If it changes, everything appended before is lost."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in one log: `entry` has been read. Valid only in the log of that identity."""

    identity: str
    entry: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Records that one `read` returned, in log order."""

    records: Sequence[bytes]
    appended_unix_ms: Sequence[int]
    """The log's clock at the append of each record, parallel to `records`."""
    at_head: bool
    """The log had nothing newer at the time of this read."""
    caught_up: bool
    """Everything is read that the log held when the reader first reached it."""
    trimmed: bool
    """Records between the last slice and this one may be lost to this reader: the log trimmed them
    or lost its data."""
    foreign: int
    """Number of messages without the outer shape of a record; left out."""
    position: LogPosition | None
    """Position from which a later reader can go on; None before the log was reached."""
    probes: Sequence[tuple[int, bytes]] = ()
    """Marks of all replicas' `LogProber`s, each after the part of the log that returned it."""


class LogWriter(Protocol):
    """One destination of a publisher's records.

    Several tasks may append at once; the records of one task keep their order.
    """

    @property
    def name(self) -> str:
        """Transport and address without credentials, for logs and metrics."""
        ...

    async def append(self, records: Sequence[bytes]) -> Appended:
        """Append `records` in order; they are stored when this returns.

        Without records it only checks that the log answers. After an error or a cancellation any
        leading part of the records may be stored.

        Raises:
            LogUnavailable: append the same records again.
            RecordsRejected: the configuration is wrong; the message says how.
        """
        ...

    async def close(self) -> None:
        """Close connections. Nothing is flushed: acknowledged records are stored."""
        ...


class LogProber(Protocol):
    """Shows that a log takes appends; a reader alone cannot see that a log takes none.

    It appends marks, which are not records. Readers return them in `LogSlice.probes`; readers of
    older releases leave them out as foreign.
    """

    @property
    def name(self) -> str:
        """Transport and address without credentials, for logs and metrics."""
        ...

    async def append_probe(self, mark: bytes) -> frozenset[int]:
        """Append a mark to each part of the log that can fail by itself; return the parts' numbers.

        Raises:
            LogUnavailable: at least one part did not take it.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class LogReader(Protocol):
    """One replica's view of the whole log. Used by one task at a time."""

    @property
    def name(self) -> str:
        """Transport and address without credentials, for logs and metrics."""
        ...

    async def read(self, wait_s: float) -> LogSlice:
        """Return the next records; an empty slice after `wait_s` seconds at the head.

        A cancelled or failed read loses nothing: the next one starts at the same position.

        Raises:
            LogUnavailable: the log does not answer; read again.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
