"""The native extension of kvatlas. Every call that works longer than a few microseconds releases the GIL."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T")
"""The type of a completed call's answer."""

# --- hashing (libs/hashing/rust) ---

def chunk_hashes(
    tokens: NDArray[np.uint32],
    block_size: int,
    seed: int,
    item_hashes: Sequence[Sequence[int] | None] | None,
) -> NDArray[np.uint64]: ...
def sequence_hashes(chunks: NDArray[np.uint64]) -> NDArray[np.uint64]: ...

# --- the publisher's mirror (libs/mirror/rust) and an engine's socket (libs/engines/rust) ---

class MirrorMemory:
    """Large pages shared by the mirrors of a process.

    A thread takes the next pages ahead of need; it ends with the last mirror.
    """

    used_bytes: int
    """Bytes that mirrors use."""
    idle_bytes: int
    """Bytes taken from the system that no mirror uses: taken ahead, or free between tables."""
    def __init__(self) -> None: ...

class ApplyOutcome:
    """The effect of one `EngineMirror.apply_payloads`, beside the events that it left pending."""

    consumed: int
    """Number of payloads applied or found malformed; the rest begins with one of another rank."""
    other_rank: int | None
    """Rank that the first payload not consumed names."""
    rank_confirmed: bool
    """A payload named the expected rank."""
    engine_clock_s: float | None
    """The engine's clock in the last well-formed payload, seconds."""
    stored_any: bool
    """A payload stored blocks with tokens that could be read."""
    malformed: int
    first_malformed: str | None
    """The first malformed payload's error."""
    refusals: list[tuple[str, str]]
    """(reason, detail) of the first refused event of each reason."""
    refused_block_size: int | None
    """The engine's block size, if an event was refused for it before any block could be read."""

def payload_dp_rank(payload: bytes) -> int | None:
    """Return the data-parallel rank that an engine's message names; None: it names none.

    Raises:
        ValueError: the payload is malformed.
    """

class EngineMirror:
    """One engine rank's cache, and the events that wait to be sealed. Not thread-safe.

    Tiers are numbered 0 to 3, from near to far.
    """

    def __init__(
        self,
        *,
        engine: str,
        block_size: int,
        blocks_max: int,
        memory: MirrorMemory | None = None,
        state: bytes | None = None,
    ) -> None:
        """Empty, or as `export_state` wrote it.

        Args:
            engine: the sender of the payloads: "vllm" or "sglang".
            block_size: tokens per block; stores of another size are refused and counted.
            blocks_max: the largest number of engine hashes held; further stores are refused and counted.
            memory: shared by the mirrors of a process; None: the general allocator.
            state: the bytes of `export_state`; None: an empty mirror.

        Raises:
            ValueError: the state is damaged, of other settings, or holds more than `blocks_max`.
        """
    def apply_payloads(self, payloads: Sequence[bytes], dp_rank: int) -> ApplyOutcome:
        """Apply the payloads of messages in order, up to one that names another rank.

        A malformed payload changes nothing, but makes every block suspect.
        """
    def export_state(self) -> NDArray[np.uint8]:
        """Return the blocks held, without pending events and counters."""
    def suspect_all(self) -> None:
        """Make every block suspect: a message was lost that may have been a removal."""
    @property
    def pending_events(self) -> int:
        """The number of events not sealed yet."""
    @property
    def is_batch_full(self) -> bool:
        """The pending events fill a batch."""
    def seal(self, header: bytes, first_event_id: int) -> list[tuple[int, bytes]]:
        """Return the records of the pending events, each with its number of events.

        `header` is encoded.
        """
    @property
    def capacity_blocks(self) -> int:
        """The size of the engine's device tier, in blocks; 0: unknown."""
    @capacity_blocks.setter
    def capacity_blocks(self, blocks: int) -> None: ...
    @property
    def held_blocks(self) -> int:
        """The number of engine hashes held, published or not, over all tiers."""
    @property
    def suspect_blocks(self) -> int:
        """The number of engine hashes whose removal may have been lost."""
    @property
    def suspects_removed(self) -> int:
        """The number of suspects removed because the engine had no room for them."""
    @property
    def memory_bytes(self) -> int:
        """Bytes of the tables, counted, not measured."""
    @property
    def blind_spots(self) -> list[str]:
        """Properties of prompts that the engine's release does not tell apart, as far as seen."""
    def unreachable_blocks(self) -> int:
        """The number of sequence hashes held below a gap, so not published. Walks the whole mirror."""
    def refused_blocks(self) -> Mapping[str, int]:
        """The number of blocks refused, by reason; an event that names no blocks counts as one."""
    def published_digests(self) -> list[tuple[int, int]]:
        """(number, XOR) of the published sequence hashes, by tier."""
    def published_hashes(self, tier: int) -> NDArray[np.uint64]:
        """Copy the published sequence hashes of a tier, in no order."""

class EngineSubscriber:
    """One connection to an engine's PUB socket, as bytes (ZMTP 3, NULL). Not thread-safe."""

    def __init__(self) -> None: ...
    @staticmethod
    def greeting() -> bytes:
        """Return the bytes to send when the connection is made."""
    @property
    def is_open(self) -> bool:
        """The handshake is over: the engine has us as a subscriber."""
    def receive(self, received: bytes | bytearray | memoryview) -> bytes:
        """Parse bytes that came off the socket; return the bytes to send back.

        Raises:
            ValueError: the peer broke the protocol or is not an engine; close the connection.
        """
    def take_messages(self) -> tuple[list[int], list[bytes], int, str | None]:
        """Return the messages received since the last call.

        Sequence numbers; payloads; the number of malformed messages; the first one's error.
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
    """The result of one `Cell.apply`."""

    accepted: int
    """Records, including repeated and outdated ones."""
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
        """Make an empty cell that is not ready.

        Args:
            cell: the cell's name; records must name it.
            model: the cell's model; records and queries must name it.
            block_size: tokens per block, equal in all records and queries.
            hash_contract: name of the hash contract, equal in all records and queries.
            replica_id: name of this replica in `status`.
            version: version of this build in `status`.
            lease_ms: how long a silent worker is matched, in its log's own time.
            hold_back_batches_max: batches of a worker that may wait behind a missing one.
            hold_back_ms: how long a gap may stay open before the worker is no longer matched.
            recover_ms: how long a worker may wait for a snapshot before its set is emptied.
            memory_bytes_max: bytes that the index may use; beyond it workers are evicted.
        """
    def keep_memory(self, memory_bytes: int) -> bool:
        """Take this many bytes from the system for the index's tables, and keep them; False: it has no more."""
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
        """Run leases, hold-back bounds, the memory budget, and a slice of the index's sweep.

        Leases stand still unless `log_alive`.
        """
    def set_ready(self, ready: bool) -> None:
        """Until ready, FindMatches answers UNAVAILABLE and health NOT_SERVING."""
    def set_log_status(self, transport: str, *, alive: bool, records: int, lag_ms: int) -> None: ...
    def rewind_log_time(self, transport: str, *, unproven_ms: int) -> None:
        """Take back leases' time of a log that has stopped; call it once per stop.

        Args:
            transport: name of the log.
            unproven_ms: age of the last sign that the log still worked.
        """
    def find_matches(
        self, hashes: NDArray[np.uint64], *, chunks: bool, limit: int = 0, exact: bool = False
    ) -> Matches:
        """Answer like the RPC; `replica` is empty."""
    def status(self) -> bytes:
        """Return an encoded GetStatusResponse."""
    def counters(self) -> Mapping[str, int]:
        """Return counts since the start by name, `what` or `what{label="value"}`; few and fixed."""
    def gauges(self) -> Mapping[str, int]:
        """Return gauges, named likewise."""
    def histograms(self) -> Mapping[str, tuple[Sequence[float], Sequence[int], float]]:
        """Return by name: upper bounds in seconds, cumulative counts (one more than bounds), sum in seconds."""
    def recovery_requests(
        self, limit: int, *, after: tuple[int, int] | None = None
    ) -> list[RecoveryRequest]:
        """Return at most `limit` workers that lack records and are not silent, by (id, rank), after that one."""
    def recovery_request(self, worker_id: int, dp_rank: int) -> RecoveryRequest | None:
        """Return what one worker lacks; None: nothing that could be asked for."""
    def set_log_position(self, transport: str, *, identity: str, entry: str) -> None:
        """Note that everything up to `entry` of the log with that identity is applied."""
    def save(self, path: str | PathLike[str]) -> SavedState:
        """Write the cell's state into a new file, and sync it.

        Records may be applied meanwhile. A start from the file applies them again, from the log.

        Raises:
            OSError: then a part of the file may be there.
        """
    def lag_report(self, limit: int, now_unix_ms: int) -> LagReport:
        """Return how far workers are behind; names at most `limit` of them."""
    def take_notices(self) -> list[str]:
        """Return the notices to the operator since the last call (gaps, differing digests, evictions); bounded."""

class RecoveryRequest:
    """A worker that lacks records."""

    worker_id: int
    dp_rank: int
    publisher_rpc: str
    """host:port from its last heartbeat; empty before the first."""
    epoch: int
    applied: int
    """The last event whose effect its set holds."""
    known: int
    """The highest event id that is known to exist."""
    recovering: bool
    """False: it is still matched, behind a gap that may close by itself."""

class LagReport:
    """How far workers are behind the events that are known to exist."""

    furthest_behind: Sequence[tuple[int, int, int, int]]
    """(worker_id, dp_rank, missing events, ms without progress), the worst first."""
    workers: int
    """Workers that are behind."""
    events: int
    """Missing events of all workers."""
    ms_max: int
    """Longest time of any worker without progress."""

# --- a cell's state in files and dumps (libs/cell/rust) ---

class SavedState:
    """A state file as it was written."""

    bytes: int
    checksum: int
    """XXH3-64 of all bytes, seed 0."""
    workers: int
    memberships: int

class Restored:
    """The content of a restored state."""

    workers: int
    memberships: int
    positions: Mapping[str, tuple[str, str]]
    """By transport, the log's identity and the newest applied entry."""

class RestoreRefused(ValueError):  # noqa: N818 - named for what it is
    """args: (reason: one of unreadable, corrupt, foreign, other_version, other_cell; message: str)."""

class Restore:
    """A restoration into a cell that has no worker yet. The cell shows nothing before `finish`.

    The first error ends it, and the cell stays as it was.
    """

    def __init__(self, cell: Cell) -> None: ...
    def read_file(self, path: str | PathLike[str], checksum: int) -> None:
        """Read a whole file. RestoreRefused: it cannot be used."""
    def feed(self, data: bytes) -> None:
        """Read the next bytes of a dump's stream. RestoreRefused: it cannot be used."""
    def finish(self, now_unix_ms: int) -> Restored:
        """Give the state to the cell. RestoreRefused: it is incomplete."""

class CellServer:
    """The gRPC server of `kvatlas.v1.Indexer`, health and reflection, on threads of its own."""

    def __init__(self, cell: Cell, host: str, port: int, *, threads: int) -> None:
        """Bind and serve. OSError: the address cannot be used."""
    @property
    def address(self) -> tuple[str, int]: ...
    def stop(self, grace_s: float) -> None:
        """Refuse new calls, end streams, and wait for running calls, at most `grace_s`."""

# --- native calls (libs/client/rust) ---

class ChannelError(Exception):
    """args: (gRPC status code: int, message: str)."""

class Query:
    """A query of `FindMatches`."""

    hashes: NDArray[np.uint64]
    """Hashes of the prompt's full blocks, head first."""
    chunks: bool
    """True: `hashes` are chunk hashes; False: sequence hashes."""
    limit: int
    """Largest number of workers in the answer; 0: all."""
    exact: bool
    """Verify every depth."""

    def __init__(
        self, hashes: NDArray[np.uint64], *, chunks: bool, limit: int, exact: bool
    ) -> None: ...

class Matches:
    """Workers that hold leading blocks of a prompt.

    Parallel columns: deepest first, then by worker and rank.
    """

    worker_ids: NDArray[np.uint64]
    dp_ranks: NDArray[np.uint32]
    depths: NDArray[np.uint32]
    """Number of leading full blocks of the prompt that the worker holds."""
    replica: str
    """Address of the replica that answered."""

    def __init__(
        self,
        worker_ids: NDArray[np.uint64],
        dp_ranks: NDArray[np.uint32],
        depths: NDArray[np.uint32],
        replica: str,
    ) -> None: ...
    def __len__(self) -> int: ...

class FindMatchesError(Exception):
    """A query without an answer.

    args: (reason: str, failures: list[tuple[str, int, str]]), each failure as replica, number of the
    gRPC status, and text. Reasons:
    "no_replica": the deadline is over, or every replica failed;
    "cell_mismatch": the one failure names terms of the cell that differ from the finder's;
    "query_rejected": the one failure says why the query is malformed.
    """

class Finder:
    """`FindMatches` of a cell: replica after replica, within one deadline; thread-safe.

    While there is another replica to ask, an attempt gets half of the time that is left. One
    connection to each replica is opened when first used, and replaced when lost.
    """

    def __init__(
        self,
        replicas: Sequence[str],
        *,
        model: str,
        block_size: int,
        hash_contract: str,
        seed: int,
    ) -> None:
        """Never fails for lack of a connection.

        Args:
            replicas: addresses, host:port.
            model: model of the cell; "": not checked.
            block_size: tokens per block; 0: not checked.
            hash_contract: hash contract; "": not checked.
            seed: uint64; chooses the first replica and jitters backoffs, so clients should differ.

        Raises:
            ValueError: there is no address, or one is not host:port.
        """
    def find_matches(self, query: Query, deadline_s: float) -> Matches:
        """Blocks without the GIL. FindMatchesError: there is no answer."""
    def find_matches_soon(
        self, query: Query, deadline_s: float, queue: CompletionQueue[Matches], ticket: int
    ) -> None:
        """Returns at once; the outcome arrives in `queue` with this `ticket`, exactly once."""
    def replicas(self) -> list[tuple[str, int, str | None]]:
        """Observations of each replica: address, failures in a row, last error."""
    def close(self) -> None:
        """Close all connections; attempts under way may finish, further ones are CANCELLED."""

class Replicas:
    """Chooses the replica to ask next, as `Finder` does; time is an argument; thread-safe."""

    def __init__(self, addresses: Sequence[str], seed: int) -> None:
        """`seed`: uint64; chooses the first replica and jitters backoffs. ValueError: no address."""
    def choose(self, now_s: float) -> str:
        """Return the replica to ask now."""
    def answered(self, address: str) -> None:
        """Report that the replica answered."""
    def failed(self, address: str, now_s: float, error: str) -> None:
        """Report that the replica was not reached in time, or cannot serve."""
    def wait_s(self, now_s: float) -> float:
        """Return the seconds until some replica may be asked; 0: now."""

def check_address(address: str) -> None:
    """Raise ValueError if the address is not host:port."""

class IngestResponse:
    """An indexer's combined response to all requests of one append."""

    rejected: int
    """Records that it did not take."""
    first_rejection: str
    """Why it rejected the first of them; "" if it does not say."""
    positions: list[tuple[int, int, int, int, bool]]
    """(worker_id, dp_rank, epoch, last_event_id, whole) of the workers in the records, in order of
    the requests: the last one of a worker counts."""

def progress(record: bytes) -> tuple[int, int, int, int] | None:
    """Return the position of a receiver that has applied everything up to `record`.

    (worker_id, dp_rank, epoch, last_event_id); None for a snapshot's part that is not its last.

    Raises:
        ValueError: it is not a record, or not a well-formed one.
    """

class IngestStream:
    """One `Ingest` call to one indexer, on a connection of its own that ends with the call."""

    def __init__(self, address: str, answer_s: float) -> None:
        """Connect in the background.

        If no answer comes for `answer_s` seconds while an append waits, the call ends with
        DEADLINE_EXCEEDED.

        Raises:
            ValueError: `address` is not host:port.
        """
    @property
    def is_over(self) -> bool:
        """The call has ended: `append` can only fail."""
    def append(
        self, records: Sequence[bytes], queue: CompletionQueue[IngestResponse], ticket: int
    ) -> None:
        """Send records after those of earlier appends; copy them and return at once.

        The outcome arrives in `queue` with this `ticket`, exactly once: the combined response to the
        requests that the records were cut into, or the error that ended the call.

        Raises:
            ChannelError: the call had ended before.
        """
    def close(self) -> None:
        """End the call; appends that wait fail with CANCELLED."""

class CompletionQueue(Generic[_T]):
    """Completed native calls that wait for an event loop; native threads never run Python."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """Return a descriptor that is readable while outcomes wait."""
    def take(self) -> list[tuple[int, _T | ChannelError | FindMatchesError]]:
        """Take all completed calls in order: ticket, and the answer or the error."""

class TextEncoder:
    """A `tokenizer.json` that `fastokens` has loaded. Thread-safe."""

    def __init__(self, file: PathLike[str]) -> None:
        """Load the file, without its settings for truncation and padding.

        Raises:
            ValueError: the file is missing, or has a part that `fastokens` does not know.
        """
    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        """Return the token ids of a text. Releases the GIL.

        Raises:
            ValueError: a pattern of the tokenizer ran into its limit.
        """

class TemplateRenderer:
    """A chat template that renders without Python; its source has been parsed by Jinja2."""

    def __init__(
        self, tree: bytes, *, special_tokens: dict[str, str], content_is_list: bool
    ) -> None:
        """Take a syntax tree, as JSON; `content_is_list`: the template loops over contents.

        Raises:
            ValueError: the tree holds a statement or an expression that is not known here.
        """
    def render(
        self, body: bytes, now: tuple[int, int, int, int, int, int, int]
    ) -> tuple[str, bool] | None:
        """Render the conversation of a body of /v1/chat/completions.

        `now` has year, month, day, hour, minute, second and the days since Sunday. Returns the text
        and whether it is whole, as `ChatTemplate.render` does; None: only Python can tell.
        """

class PromptReader:
    """Reads requests' bodies as far as routing wants them. Thread-safe."""

    def __init__(
        self,
        *,
        encoder: TextEncoder | None,
        template: TemplateRenderer | None,
        block_size: int,
        wanted: Literal["fields", "tokens", "hashes"],
        threads: int,
        cache_bytes_max: int,
        tenant_header: str | None,
    ) -> None:
        """Without an encoder, texts are left to Python; without a template, conversations are.

        At most `threads` long bodies are read at the same time. Tokens of earlier texts are kept in
        a cache of `cache_bytes_max` bytes (0: none), each tenant's for itself: a tenant is the value
        of `tenant_header`, or else the request's credentials.

        Raises:
            ValueError: `tenant_header` is no name of a header.
        """
    @property
    def no_cache_because(self) -> str | None:
        """Why the texts of this tokenizer cannot be cached; None: they are, or no cache is wanted."""
    def cache_stats(self) -> CacheStats | None:
        """Count the cache's hits so far; None: there is no cache."""
    def set_adapters(self, adapters: dict[str, str]) -> None:
        """Replace the names of the LoRA adapters by the models' names in requests."""
    def read(self, path: str, body: bytes, *, tenant: bytes | None = None) -> ReadPrompt | str:
        """Read a body; a string says why it is left to Python. Releases the GIL.

        Raises:
            ValueError: no request to this path has a prompt.
        """

class CacheStats:
    """Counts of a cache of tokens."""

    @property
    def hit_bytes(self) -> int:
        """Bytes of text whose tokens were found."""
    @property
    def miss_bytes(self) -> int:
        """Bytes of text that were encoded."""
    @property
    def bytes(self) -> int:
        """Memory in use."""
    @property
    def entries(self) -> int:
        """Segments of text that are kept."""

class ReadPrompt:
    """The part of a request's body that routing needs."""

    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def batch(self) -> bool:
        """Several prompts in one request; what follows is the first one's."""
    @property
    def lora_name(self) -> str | None:
        """The adapter that the hashes were made with."""
    @property
    def tokens(self) -> NDArray[np.uint32] | None:
        """The prompt's token ids; None: not wanted."""
    @property
    def whole(self) -> bool:
        """False: the tokens end before an item that is no text."""
    @property
    def chunk_hashes(self) -> NDArray[np.uint64] | None:
        """The chunk hashes of the blocks that an engine can take from its cache; None: not wanted."""
    @property
    def tokenize_s(self) -> float:
        """Time to read the body and to tokenize, in seconds."""
    @property
    def hash_s(self) -> float:
        """Time to hash, in seconds."""

class EngineTls:
    """Whom the frontend trusts at `https://` engines, and which certificate it shows."""

    def __init__(self, *, ca: bytes | None, certificate: bytes | None, key: bytes | None) -> None:
        """Take PEM documents.

        Args:
            ca: certificates of the CAs; None: those of the system.
            certificate: the frontend's certificate and those between it and its CA; None: none.
            key: its private key, not encrypted.

        Raises:
            ValueError: args are the document's name, as above, and why it cannot be used.
        """

class Proxy:
    """The frontend's data plane: an HTTP server on a thread of its own, which never runs Python.

    It reads requests whole, within limits; tells what happens as events; does the steps that it is
    told; and streams the engines' answers. The contract is described in the crate `kvatlas-proxy`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        engine_tls: EngineTls,
        shared: SharedListener | None = None,
        head_bytes_max: int,
        headers_max: int,
        body_bytes_max: int,
        answer_buffer_bytes_max: int,
        head_timeout_s: float,
        body_timeout_s: float,
        idle_timeout_s: float,
        write_timeout_s: float,
        connect_timeout_s: float,
        first_byte_timeout_s: float | None,
        between_bytes_timeout_s: float | None,
        prompts: PromptReader | None,
        finder: Finder | None,
        matches_limit: int,
        matches_deadline_s: float,
    ) -> None:
        """Listen and serve. A timeout of None means no limit.

        With `shared`, host and port are not used.

        With a reader of prompts, a request arrives once its prompt has been read; with a finder too,
        once the indexers have been asked for the prompt's matches. The finder's connections move to
        the server's thread.

        Raises:
            OSError: the address cannot be used.
        """
    @property
    def address(self) -> tuple[str, int]:
        """IP address and port that it listens on."""
    @property
    def in_flight(self) -> int:
        """Number of requests whose first byte has been read and whose end has not come."""
    def set_asking(self, is_on: bool) -> None:
        """Switch asking the indexers on or off; it begins switched on."""
    def fileno(self) -> int:
        """Return a descriptor that is readable while events wait."""
    def take(self) -> list[Arrived | Failed | FirstByte | Ended | Refused]:
        """Take all events that wait; those of one request are in order."""
    def close(self, grace_s: float) -> None:
        """Stop listening, let requests end for `grace_s` seconds, end the others. Blocks without the GIL."""

class SharedListener:
    """A listening socket that other processes have too, and the lines that count their connections.

    The process with the fewest open connections accepts the next one.
    """

    def __init__(self, fd: int, lines: NDArray[np.uint64], process: int) -> None:
        """Take a listening socket, which has to be open when `Proxy` is made.

        Args:
            fd: descriptor of the socket.
            lines: uint64[processes, 8] in memory that all processes map; zeros at first. A process
                writes its own line. Its words are: connections open, turn, 1 while it accepts, and
                one that others set to 1 while it hangs. The buffer is never released.
            process: number of this process's line.

        Raises:
            ValueError: there is no such line, or the memory is of another kind.
        """

class Exchange:
    """A request that has arrived whole, and the way to answer it.

    Call `forward` or `answer` once after `Arrived`, and once after each `Failed`. Neither waits, and
    both do nothing once the client has left.
    """

    @property
    def id(self) -> int:
        """Unique in the process."""
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str:
        """The path as sent: percent-encoding is not undone."""
    @property
    def query(self) -> str:
        """The query without its question mark; "": none."""
    @property
    def body(self) -> bytes:
        """A copy of the body, decompressed."""
    @property
    def error_form(self) -> Literal["openai", "anthropic"]:
        """The API whose error objects the client expects, by the path."""
    @property
    def age_s(self) -> float:
        """Seconds since the request's first byte."""
    def header(self, name: str) -> str | None:
        """The first header of that name."""
    def forward(
        self,
        host: str,
        port: int,
        target: str,
        request_headers: list[tuple[str, str]],
        answer_headers: list[tuple[str, str]],
        *,
        is_tls: bool,
        begin_bytes: int = 0,
    ) -> None:
        """Send the request to an engine and its answer to the client.

        Args:
            host: name or IP address of the engine.
            port: its port.
            target: path and query at the engine.
            request_headers: headers for the engine; each replaces the client's of that name.
            answer_headers: headers that are added to the answer.
            is_tls: whether the engine speaks TLS (`https://`).
            begin_bytes: how much of the answer's begin `FirstByte` has, at most 4,096.

        Raises:
            ValueError: a header cannot be sent.
        """
    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer without an engine.

        Raises:
            ValueError: the status or a header cannot be sent.
        """

class Arrived:
    """A whole request waits for a step."""

    exchange: Exchange
    prompt: ReadPrompt | None
    """The part of its body that was read; None: nothing, because of `left` or because it has no prompt."""
    left: str | None
    """Why Python has to read the body: body, tokenizer, template or too_long; None: it does not."""
    matches: Matches | FindMatchesError | None
    """The indexers' answer, or why there is none; None: they were not asked."""
    find_s: float
    """Time that asking took, in seconds."""
    @property
    def age_s(self) -> float:
        """Time since the last byte of the body, in seconds."""

class Failed:
    """An engine gave no byte of an answer; the request waits for another step."""

    id: int
    kind: str
    """connect, died, timeout, status_5xx or protocol."""
    detail: str
    """For logs only: it may name the engine's address."""
    status: int | None
    """The engine's status, if it is 500 or more."""
    retry_after: str | None
    """`Retry-After` of such an answer."""

class FirstByte:
    """The first byte of an engine's answer has arrived; the request is not sent again."""

    id: int
    begin: bytes
    """The begin of the answer's body, as much as `forward` asked for. The client has none of it yet."""

class Ended:
    """A request is over; comes once for each `Arrived`."""

    id: int
    status: int
    """Status of the answer; 499: the client left before its end."""
    broken: str | None
    """The engine died after its first byte; for logs only."""
    tail: bytes
    """The last bytes of an engine's whole answer, at most 4,096."""

class Refused:
    """A request was refused, or its client left, before it had arrived whole."""

    path: str
    """"": its head could not be read."""
    status: int
    code: str
    """`code` of the error object; "": the client left."""
