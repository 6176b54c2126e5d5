"""The native extension of kvatlas. Every call that works longer than a few microseconds releases the GIL."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T")
Columns: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint32]]
"""Of an answer: worker_ids, dp_ranks, depths."""

# --- hashing (libs/hashing/rust) ---

def chunk_hashes(
    tokens: NDArray[np.uint32],
    block_size: int,
    seed: int,
    item_hashes: Sequence[Sequence[int] | None] | None,
) -> NDArray[np.uint64]: ...
def sequence_hashes(chunks: NDArray[np.uint64]) -> NDArray[np.uint64]: ...

# --- the publisher's mirror (libs/mirror/rust) ---

class Memory:
    """Large pages that a process's mirrors share; a thread takes them ahead until the last is gone."""

    used_bytes: int
    """What mirrors have of it."""
    idle_bytes: int
    """Taken from the system, and of no mirror: taken ahead, or free between their parts."""
    def __init__(self) -> None: ...

class Heard:
    """What `EngineMirror.tell` made of a run of messages."""

    taken: int
    """How many of them; fewer than all only before one of another rank."""
    other_rank: int | None
    """The rank for which the first message not taken speaks."""
    rank_said: bool
    """A message named the expected rank."""
    ts: float | None
    """The engine's clock in the last message that could be read, seconds."""
    stored_any: bool
    """Blocks were announced with tokens that could be read."""
    malformed: int
    first_malformed: str | None
    refusals: list[tuple[str, str]]
    """(reason, detail) of the first refused event of each reason."""
    block_size_at_first: int | None
    """The engine's, if it was refused before any block that could be read."""

class EngineMirror:
    """One engine rank's cache in one life, and what it has to say until that is sealed.

    Engine hashes are numbers of any width, tiers 0 to 3 from near to far. Not thread-safe.
    """

    def __init__(
        self, *, engine: str, block_size: int, blocks_max: int, memory: Memory | None = None
    ) -> None:
        """Empty.

        Args:
            engine: whose messages `tell` gets: "vllm" or "sglang".
            block_size: tokens of a block; stores of another size are refused and counted.
            blocks_max: engine hashes held at most; further stores are refused and counted.
            memory: where what is held lies; None: where the process's other things do.
        """
    def tell(self, payloads: Sequence[bytes], dp_rank: int) -> Heard:
        """Read messages' payloads and apply them, in order. A malformed one makes all suspect.

        Stops before a message that names another rank than `dp_rank`.
        """
    def export_state(self) -> NDArray[np.uint8]:
        """What is held, for `import_state`; neither what waits to be sealed nor counters."""
    @staticmethod
    def import_state(
        state: bytes, *, engine: str, block_size: int, blocks_max: int, memory: Memory | None = None
    ) -> EngineMirror:
        """Return the mirror that `export_state` was asked of; the rest as in `__init__`.

        Raises:
            ValueError: it is damaged, of other settings, or holds more than `blocks_max`.
        """
    def stored(
        self,
        hashes: Sequence[int],
        parent: int | None,
        tokens: NDArray[np.uint32],
        tier: int,
        *,
        lora_name: str | None,
        cache_salt: str | None,
        items: Sequence[Sequence[int]] | None,
    ) -> None:
        """Add a decoded event to those that `apply` takes; `tokens`: (blocks * block_size,)."""
    def stored_by_hash(self, hashes: Sequence[int], tier: int) -> None: ...
    def removed(self, hashes: Sequence[int], tier: int) -> None: ...
    def cleared(self, tier: int | None) -> None: ...
    def refused(self, reason: str, blocks: int, *, may_hide_removal: bool) -> None: ...
    def apply(self) -> None:
        """Apply the decoded events as one message."""
    def suspect_all(self) -> None:
        """Something was lost that may have been a removal."""
    @property
    def pending_events(self) -> int:
        """What was said and not sealed or taken yet."""
    @property
    def is_batch_full(self) -> bool:
        """What waits fills a batch."""
    def seal(self, header: bytes, first_event_id: int) -> list[tuple[int, bytes]]:
        """The records of all that waits, each with its number of events; `header` is encoded."""
    def take(self) -> list[tuple[str, int | None, int | None, NDArray[np.uint64]]]:
        """All that waits instead: (store, remove or clear; parent; tier; hashes)."""
    @property
    def capacity_blocks(self) -> int:
        """Of the engine's device tier; 0: unknown."""
    @capacity_blocks.setter
    def capacity_blocks(self, blocks: int) -> None: ...
    @property
    def held_blocks(self) -> int:
        """Engine hashes held, published or not, over all tiers."""
    @property
    def suspect_blocks(self) -> int:
        """Engine hashes whose removal may have been lost."""
    @property
    def suspects_removed(self) -> int: ...
    @property
    def memory_bytes(self) -> int:
        """Of what is held, links included; counted, not measured."""
    @property
    def blind_spots(self) -> list[str]:
        """What the engine's release cannot tell apart, as far as it was seen."""
    def unreachable_blocks(self) -> int:
        """Sequence hashes held below a gap, and so not published. Walks the whole mirror."""
    def unindexable(self) -> Mapping[str, int]:
        """Blocks refused, by reason; an event that names no blocks counts as one."""
    def digests(self) -> list[tuple[int, int]]:
        """(number, XOR) of the published sequence hashes, by tier."""
    def snapshot(self, tier: int) -> NDArray[np.uint64]:
        """Copy the published set of a tier, in no order."""

class EngineSubscriber:
    """One connection to an engine's PUB socket, as bytes (ZMTP 3, NULL). Not thread-safe."""

    def __init__(self) -> None: ...
    @staticmethod
    def greeting() -> bytes:
        """What to send when the connection is there."""
    @property
    def is_open(self) -> bool:
        """The handshake is over: the engine has us as a subscriber."""
    def feed(self, received: bytes | bytearray | memoryview) -> bytes:
        """Take what came off the socket; return what to send.

        Raises:
            ValueError: the peer broke the protocol or is no engine; close the connection.
        """
    def take(self) -> tuple[list[int], list[bytes], int, str | None]:
        """Sequence numbers and payloads of the messages that came since the last call.

        Then how many messages besides were malformed, and what was wrong with the first of them.
        """

# --- the publisher's outbox (libs/events/rust) ---

class Outbox:
    """Bounded queue of one worker's records towards one log writer."""

    def __init__(self, *, records_max: int, bytes_max: int) -> None: ...
    def push(self, record: bytes) -> bool:
        """Queue a numbered record. False: dropped, since the outbox overflowed and awaits a snapshot."""
    def push_heartbeat(self, record: bytes) -> None:
        """Replace the waiting heartbeat; it is sent when all queued records have been."""
    def push_snapshot(self, records: Sequence[bytes]) -> None:
        """Empty the outbox and open it again with a snapshot's parts; not bounded."""
    def require_snapshot(self) -> None:
        """Empty the outbox: the receiver cannot continue from what is queued."""
    def peek(self, records_max: int, bytes_max: int) -> tuple[int, list[bytes]] | None:
        """A ticket and the oldest records, queued until it is acknowledged; None: none to send now."""
    def acknowledge(self, ticket: int) -> None:
        """Release what `peek` gave with this ticket, as far as it has not been dropped since."""
    @property
    def is_empty(self) -> bool:
        """Whether `peek` would give None."""
    @property
    def awaits_snapshot(self) -> bool:
        """Whether numbered records are dropped until `push_snapshot`."""
    @property
    def holds_snapshot(self) -> bool:
        """Whether a part of a snapshot is still queued."""
    @property
    def queued_records(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def overflows(self) -> int: ...

# --- the cell and its gRPC server (libs/cell/rust) ---

class Applied:
    """What one `Cell.apply` did."""

    accepted: int
    rejected: int
    first_rejection: str | None

class Cell:
    """One cell's state in this replica. Thread-safe; the server's threads and Python share it."""

    def __init__(
        self,
        *,
        cell: str,
        model: str,
        block_size: int,
        hash_contract: str,
        replica_id: str,
        version: str,
        lease_ms: int,
        hold_back_batches_max: int,
        hold_back_ms: int,
        memory_bytes_max: int,
        recover_ms: int = 30_000,
    ) -> None:
        """Empty and not ready.

        Args:
            cell: what its records must name.
            model: what its records and queries must name.
            block_size: tokens per block, as its records and queries must say.
            hash_contract: as its records and queries must say.
            replica_id: told by `status`.
            version: told by `status`.
            lease_ms: how long a worker may be silent, in its log's own time, and still match.
            hold_back_batches_max: batches a worker may have waiting behind a missing one.
            hold_back_ms: how long a gap may stay open before the worker is no longer matched.
            recover_ms: how long a worker may wait for a snapshot before its set is emptied.
            memory_bytes_max: of the index; past it the largest worker is emptied.
        """
    def keep_memory(self, memory_bytes: int) -> bool:
        """Take so much from the system for the index's tables, and keep it; False if it has no more."""
    def apply(
        self,
        records: Sequence[bytes],
        *,
        transport: str,
        appended_unix_ms: Sequence[int],
        now_unix_ms: int,
    ) -> Applied:
        """Decode, sequence and apply records in order. A bad record is counted and skipped, never raised."""
    def tick(self, now_unix_ms: int, *, log_alive: bool) -> None:
        """Run leases (frozen while no log is alive), hold-back bounds, and a slice of the index's sweep."""
    def set_ready(self, ready: bool) -> None:
        """Until ready, FindMatches answers UNAVAILABLE and health NOT_SERVING."""
    def set_log_status(self, transport: str, *, alive: bool, records: int, lag_ms: int) -> None: ...
    def take_back_log_time(self, transport: str, *, unproven_ms: int) -> None:
        """Say, once for every stop of a log, how old the last sign is that it still went.

        What leases have counted since is taken back.
        """
    def find_matches(
        self, hashes: NDArray[np.uint64], *, chunks: bool, limit: int = 0, exact: bool = False
    ) -> Columns:
        """As the RPC answers."""
    def status(self) -> bytes:
        """An encoded GetStatusResponse."""
    def counters(self) -> Mapping[str, int]:
        """Counts since the start by name, `what` or `what{label="value"}`; few and fixed."""
    def gauges(self) -> Mapping[str, int]:
        """What rises and falls, named likewise."""
    def histograms(self) -> Mapping[str, tuple[Sequence[float], Sequence[int], float]]:
        """By name: upper bounds in seconds, cumulative counts (one more than bounds), sum in seconds."""
    def needs(self, limit: int, *, after: tuple[int, int] | None = None) -> list[WorkerNeed]:
        """At most `limit` workers that lack records and are not silent, by (id, rank), after that one."""
    def need_of(self, worker_id: int, dp_rank: int) -> WorkerNeed | None:
        """What one worker lacks; None: nothing that could be asked for."""
    def set_log_position(self, transport: str, *, identity: str, entry: str) -> None:
        """Say that everything up to `entry` of the log of that identity has been applied."""
    def save(self, path: str | PathLike[str]) -> Saved:
        """Write the state to start from again into a new file, and see it on the disk.

        Records may be applied meanwhile: a start from the file applies them again, from the log.

        Raises:
            OSError: then a part of the file may be there.
        """
    def lags(self, limit: int, now_unix_ms: int) -> Lags:
        """How far workers are behind, with the figures of at most `limit`, the furthest behind."""
    def take_notices(self) -> list[str]:
        """What an operator should read (gaps, differing digests, sets emptied), since the last call; bounded."""

class WorkerNeed:
    """A worker that lacks records: `applied` is the last event it has, `known` the highest that exists."""

    worker_id: int
    dp_rank: int
    publisher_rpc: str
    """host:port, as its last heartbeat said; empty before the first."""
    epoch: int
    applied: int
    known: int
    recovering: bool
    """False: it is still matched, behind a gap that may close by itself."""

# --- a replica's state, out of one process and into another (libs/cell/rust) ---

class Saved:
    """A file of state as it was written."""

    bytes: int
    checksum: int
    """XXH3-64 of all of it, seed 0."""
    workers: int
    memberships: int

class Lags:
    """How far workers are behind what is known to exist."""

    most: Sequence[tuple[int, int, int, int]]
    """(worker_id, dp_rank, events, ms since one was last applied), the furthest behind first."""
    workers: int
    events: int
    ms_max: int

class Restored:
    """What a cell was given at its start."""

    workers: int
    memberships: int
    positions: Mapping[str, tuple[str, str]]
    """By transport, how far its log is applied: the log's identity and the entry."""

class RestoreRefused(ValueError):  # noqa: N818 - named for what it is
    """args: (why: one word of unreadable, corrupt, foreign, other_version, other_cell; message: str)."""

class Restore:
    """A start from a kept state, into a cell that has no worker yet. Nothing shows before `finish`.

    The first error ends it, and the cell stays as it was.
    """

    def __init__(self, cell: Cell) -> None: ...
    def read_file(self, path: str | PathLike[str], checksum: int) -> None:
        """Read all of a file. RestoreRefused: it cannot be used."""
    def feed(self, data: bytes) -> None:
        """Read the next bytes of a dump's stream. RestoreRefused: it cannot be used."""
    def finish(self, now_unix_ms: int) -> Restored:
        """Give the cell what was read. RestoreRefused: it was not all."""

class CellServer:
    """The tonic server of `kvatlas.v1.Indexer`, health and reflection, on threads of its own."""

    def __init__(self, cell: Cell, host: str, port: int, *, threads: int) -> None:
        """Bind and serve. OSError: the address cannot be used."""
    @property
    def address(self) -> tuple[str, int]: ...
    def stop(self, grace_s: float) -> None:
        """Refuse new calls, end streams, wait at most `grace_s`."""

# --- native calls (libs/client/rust) ---

class ChannelError(Exception):
    """args: (gRPC status code: int, message: str)."""

class Channel:
    """One connection to one indexer, kept and made again in the background; thread-safe."""

    def __init__(self, address: str) -> None:
        """`address`: host:port, else ValueError. Connects lazily; an unreachable host is no error."""
    def find_matches(
        self,
        hashes: NDArray[np.uint64],
        *,
        chunks: bool,
        model: str,
        block_size: int,
        hash_contract: str,
        limit: int,
        exact: bool,
        timeout_s: float,
    ) -> Columns:
        """Blocks without the GIL. ChannelError: any status but OK."""
    def find_matches_soon(
        self,
        hashes: NDArray[np.uint64],
        *,
        chunks: bool,
        model: str,
        block_size: int,
        hash_contract: str,
        limit: int,
        exact: bool,
        timeout_s: float,
        inbox: Inbox[Columns],
        ticket: int,
    ) -> None:
        """Returns at once; the outcome comes into `inbox` with this `ticket`, exactly once."""
    def close(self) -> None:
        """Give up the connection; calls under way may finish, new ones are CANCELLED."""

class Ingested:
    """What an indexer says to all requests of one append."""

    rejected: int
    """Records that it did not take."""
    first_rejection: str
    """Why, in words; "" if it does not say."""
    positions: list[tuple[int, int, int, int, bool]]
    """(worker_id, dp_rank, epoch, last_event_id, whole) of the workers that were spoken of, per
    request: a later one of the same worker counts."""

def progress(record: bytes) -> tuple[int, int, int, int] | None:
    """How far a receiver is that has applied everything up to `record`.

    (worker_id, dp_rank, epoch, last_event_id); None for a snapshot's part that is not its last.
    ValueError: no record, or not a well-formed one.
    """

class IngestStream:
    """One `Ingest` call to one indexer, on a connection of its own. When it ends, so does this."""

    def __init__(self, address: str, answer_s: float) -> None:
        """`address`: host:port, else ValueError. Connects in the background.

        Silence of `answer_s` while an append waits ends the call with DEADLINE_EXCEEDED.
        """
    @property
    def is_over(self) -> bool:
        """The call has ended: `append` can only fail."""
    def append(self, records: Sequence[bytes], inbox: Inbox[Ingested], ticket: int) -> None:
        """Send records after those of earlier appends; returns at once, having copied them.

        The outcome comes into `inbox` with this `ticket`, exactly once: the answers to all requests
        that the records were cut into, or why the call ended. ChannelError: it had ended before.
        """
    def close(self) -> None:
        """End the call; appends that wait are CANCELLED."""

class Inbox(Generic[_T]):
    """Outcomes that wait for an event loop; native threads never run Python."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """Readable while outcomes wait."""
    def take(self) -> list[tuple[int, _T | ChannelError]]:
        """All outcomes that have come, in order, by ticket."""
