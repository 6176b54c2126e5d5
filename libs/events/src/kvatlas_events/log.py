"""The event log as the services see it: who appends, who reads, and what can go wrong.

A log takes records as opaque bytes, keeps the order of each writer, and gives every reader all of
them. It may give a record twice, never two in the wrong order of one writer, and it may forget
its oldest ones: then the reader is told (`LogSlice.trimmed`), and the sequencer recovers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvatlas_events.model import Worker


class LogUnavailable(Exception):  # noqa: N818 - the contract's name
    """The log does not answer. Nothing is known of the records: append the same ones again.

    The message names the address, without credentials, and what was wrong.
    """


class RecordsRejected(Exception):  # noqa: N818 - the contract's name
    """The receiver will not take these records, whenever they are sent; the message says why."""


class Fenced(RecordsRejected):
    """The worker has a later life already.

    It is another publisher's, or the caller's own, which the receiver knows from another transport.
    """

    def __init__(
        self, name: str, worker: Worker, epoch: int, rival_epoch: int, *, rival: str = ""
    ) -> None:
        theirs = f"{rival_epoch} of publisher {rival}" if rival else f"{rival_epoch}"
        super().__init__(f"{name}: worker {worker} is in epoch {theirs} already; ours is {epoch}")
        self.worker = worker
        self.epoch = epoch
        self.rival_epoch = rival_epoch


@dataclass(frozen=True, slots=True)
class Appended:
    """The receiver's acknowledgement of one `append`."""

    needs_snapshot: frozenset[Worker] = frozenset()
    """Workers whose history the receiver cannot continue: only a snapshot helps."""
    identity: str | None = None
    """Of the log, if it has one. Another than before: all that was appended earlier is gone."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in one log: `entry` has been read. Of use only in the log of the same identity."""

    identity: str
    entry: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """What one `read` gave: records in log order."""

    records: Sequence[bytes]
    appended_unix_ms: Sequence[int]
    """The log's clock when it took each record, parallel to `records`."""
    at_head: bool
    """The log held nothing newer when this was read."""
    caught_up: bool
    """Everything that the log held when the reader first reached it has been read."""
    trimmed: bool
    """Records between the last slice and this one may be lost to this reader: trimmed, or gone
    with a log that lost its data."""
    foreign: int
    """Messages among the records that have not even their outer shape; left out."""
    position: LogPosition | None
    """Where a later reader may go on; None before the log has been reached."""
    probes: Sequence[tuple[int, bytes]] = ()
    """Marks of all replicas' `LogProber`s, each with the part of the log that gave it back."""


class LogWriter(Protocol):
    """One destination of a publisher's records.

    Several tasks may append at once; what one task appends keeps its order.
    """

    @property
    def name(self) -> str:
        """Transport and address without credentials, for logs and metrics."""
        ...

    async def append(self, records: Sequence[bytes]) -> Appended:
        """Append `records` in order; they are stored when this returns.

        Without records it only asks whether the log answers.
        After an error or a cancellation any leading part of them may have been stored.

        Raises:
            LogUnavailable: append the same records again.
            RecordsRejected: the configuration is wrong; the message says how.
        """
        ...

    async def close(self) -> None:
        """Let go of connections. Nothing is flushed: what was acknowledged is stored."""
        ...


class LogProber(Protocol):
    """Shows that a log takes what is appended: a reader whose log takes nothing reads on in peace.

    What it appends are no records. Readers give them back in `LogSlice.probes`; those of before
    this was known leave them out as foreign.
    """

    @property
    def name(self) -> str:
        """Transport and address without credentials, for logs and metrics."""
        ...

    async def append_probe(self, mark: bytes) -> frozenset[int]:
        """Append a mark to each part of the log that can fail by itself; return their numbers.

        Raises:
            LogUnavailable: at least one part did not take it.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class LogReader(Protocol):
    """One replica's view of the whole log. Used by one task at a time."""

    @property
    def name(self) -> str:
        """Transport and address without credentials, for logs and metrics."""
        ...

    async def read(self, wait_s: float) -> LogSlice:
        """Return the next records; an empty slice after `wait_s` seconds at the head.

        A cancelled or failed read loses nothing: the next one starts from the same place.

        Raises:
            LogUnavailable: the log does not answer; read again.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
