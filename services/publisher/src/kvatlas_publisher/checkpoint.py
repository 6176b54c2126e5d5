"""A worker's mirror on disk, with the place in the engine's stream that it is of.

    "kvcheckp" | header's length 4 | header, JSON | CRC-32 of the header 4 | the mirror's own bytes

What is restored is not published before the engine has replayed the last message that went into it,
and that message has the digest remembered: the engine could have been restarted meanwhile. Without
that proof, and with other settings than the file's, it is dropped, and the life begins empty like
any other. A checkpoint that waits for its engine stays on disk, for the next start.

A checkpoint is some 42 bytes a block. A thread exports the mirror, which takes a third of a second
for a million blocks, and writes it. The event loop goes on meanwhile; only what this one engine says
waits, for the mirror must not change under the thread's hands.
"""

import asyncio
import json
import logging
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, cast

from kvatlas_engines.anchor import Anchor, digest_of
from kvatlas_engines.stream import Stream
from kvatlas_events import Worker
from kvatlas_hashing import CONTRACT
from kvatlas_publisher.life import Life
from kvatlas_publisher.mirror import Mirror
from kvatlas_publisher.session_terms import SessionCounters, SessionSettings
from kvatlas_publisher.settings import EngineSpec
from kvatlas_publisher.state_dir import Owner, StateCorrupt, StateDir

log = logging.getLogger(__name__)

VERSION = 1
_MAGIC = b"kvcheckp"
_HEADER_BYTES_MAX = 64 << 10
_BLOCK_BYTES_MAX = 80
_NAMES_BYTES_MAX = 64 << 20
"""Of adapters and salts."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What has to be the same for a mirror to be of use."""

    cell: str
    worker: str
    engine: str
    model: str
    block_size: int
    hash_contract: str = CONTRACT


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A mirror after the message of the anchor."""

    terms: Terms
    anchor: Anchor
    state: bytes | memoryview


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, bytes | memoryview]:
    """Return what a checkpoint's file holds, in two parts; the second is the mirror's own bytes."""
    anchor = checkpoint.anchor
    said = {
        "version": VERSION,
        "terms": asdict(checkpoint.terms),
        "seq": anchor.seq,
        "digest": anchor.digest.hex(),
        "state_bytes": len(checkpoint.state),
    }
    header = json.dumps(said).encode()
    length, checksum = (struct.pack("<I", number) for number in (len(header), zlib.crc32(header)))
    return b"".join((_MAGIC, length, header, checksum)), checkpoint.state


def decode_checkpoint(content: bytes) -> Checkpoint:
    """Return what `encode_checkpoint` was given, of its parts as one.

    The mirror's bytes are not looked at.

    Raises:
        StateCorrupt: it was not given that, or what it made was damaged.
    """
    if content[:8] != _MAGIC or len(content) < 16:  # noqa: PLR2004 - magic, length, checksum
        raise StateCorrupt("it is no checkpoint")
    (length,) = struct.unpack_from("<I", content, 8)
    end = 12 + length
    if length > _HEADER_BYTES_MAX or len(content) < end + 4:
        raise StateCorrupt("it ends early")
    header = content[12:end]
    if struct.unpack_from("<I", content, end) != (zlib.crc32(header),):
        raise StateCorrupt("its checksum is wrong")
    try:
        said = cast("dict[str, Any]", json.loads(header))
        if said["version"] != VERSION:
            raise StateCorrupt(f"it is of version {said['version']!r}, not {VERSION}")
        terms = Terms(**said["terms"])
        anchor = Anchor(int(said["seq"]), bytes.fromhex(said["digest"]))
        state_bytes = int(said["state_bytes"])
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        if isinstance(error, StateCorrupt):
            raise
        raise StateCorrupt("its header is another one") from None
    state = content[end + 4 :]
    if not 0 <= anchor.seq < 1 << 64 or len(state) != state_bytes:
        raise StateCorrupt("it is of another length")
    return Checkpoint(terms, anchor, state)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A file to be written: the how manieth, of which epoch and message, of which mirror."""

    number: int
    place: tuple[int, int]
    name: str
    terms: Terms
    anchor: Anchor
    mirror: Mirror


class Checkpoints:
    """Keeps one worker's mirror over restarts.

    Args:
        spec: the engine rank.
        worker: the rank as far as it is known.
        state: where; None: nowhere.
        settings: how large mirrors get, and where they lie.
        counters: `state_…` and `checkpoints…` are counted up.
    """

    def __init__(
        self,
        spec: EngineSpec,
        worker: Worker,
        state: StateDir | None,
        settings: SessionSettings,
        counters: SessionCounters,
    ) -> None:
        self._spec = spec
        self._worker = worker
        self._state = state
        self._blocks_max = settings.mirror_blocks_max
        self._memory = settings.memory
        self._counters = counters
        self._fails = False
        self._made = 0
        self._written = 0
        self._place_written: tuple[int, int] | None = None
        self._writing = threading.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self.anchor: Anchor | None = None
        """The message that the engine has to show; None: nothing waits to be resumed."""
        self._waiting: Mirror | None = None
        self._due_s: float | None = None
        self._load()

    def new_mirror(self) -> Mirror:
        """Return an empty mirror."""
        spec = self._spec
        return Mirror(
            engine=spec.engine,
            block_size=spec.block_size,
            blocks_max=self._blocks_max,
            memory=self._memory,
        )

    # --- back from disk ---

    def resume(self) -> Mirror:
        """Return the mirror that waited: the engine has shown the message."""
        mirror, self._waiting, self.anchor = self._waiting, None, None
        self._counters.checkpoints_resumed += 1
        if mirror is None:
            raise RuntimeError("nothing waits to be resumed")
        log.info("worker %s: goes on from its checkpoint", self._worker)
        return mirror

    def is_overdue(self, now_s: float, within_s: float) -> bool:
        """Whether the engine, asked here first so long ago, still has not shown the message."""
        if self._due_s is None:
            self._due_s = now_s + within_s
        return now_s >= self._due_s

    def drop(self, why: str) -> None:
        """Forget the mirror that waited, if one does."""
        if self._waiting is None:
            return
        self._waiting = self.anchor = None
        self._tell_dropped(why)

    def _tell_dropped(self, why: str) -> None:
        self._counters.checkpoints_dropped += 1
        log.warning("worker %s: its checkpoint is of no use: %s", self._worker, why)

    def _load(self) -> None:
        if self._state is None:
            return
        try:
            self._read(self._state)
        except StateCorrupt as error:
            self._counters.state_corrupt += 1
            log.warning("worker %s: %s", self._worker, error)
        except OSError as error:
            self._on_failure(error)

    def _read(self, state: StateDir) -> None:
        bytes_max = _BLOCK_BYTES_MAX * self._blocks_max + _NAMES_BYTES_MAX
        content = state.read(self._name, bytes_max)
        if content is None:
            return
        if len(content) > bytes_max:
            self._tell_dropped("it holds more blocks than are allowed")
            return
        try:
            found = decode_checkpoint(content)
        except StateCorrupt as error:
            raise state.set_aside(self._name, error) from None
        ours = asdict(self._terms)
        differs = [name for name, value in asdict(found.terms).items() if value != ours[name]]
        if differs:
            self._tell_dropped(f"its {' and '.join(differs)} differs")
            return
        if self._spec.replay is None:
            self._tell_dropped("without --replay the engine cannot show that it still is the same")
            return
        try:
            self._waiting = Mirror.restored(
                bytes(found.state),
                engine=self._spec.engine,
                block_size=self._spec.block_size,
                blocks_max=self._blocks_max,
                memory=self._memory,
            )
        except ValueError as error:
            raise state.set_aside(self._name, StateCorrupt(str(error))) from None
        self.anchor = found.anchor

    # --- to disk ---

    async def keep(
        self,
        every_s: float,
        now: Callable[[], tuple[Life | None, Stream]],
        hold: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Write what `now` returns again and again, if it has changed; 0: never.

        Inside of `hold()` nobody changes the mirror. A cancelled one goes on, see `settled`.
        """
        while self._state is not None and every_s > 0:
            await asyncio.sleep(every_s)
            # Shielded: a thread cannot be cancelled, and has to be waited for.
            self._keeping = asyncio.create_task(self._keep_once(now, hold))
            await asyncio.shield(self._keeping)

    async def settled(self) -> None:
        """Wait until no thread reads the mirror any more, and what was held back is in it."""
        if self._keeping is not None:
            await asyncio.wait([self._keeping])

    def save(self, life: Life | None, stream: Stream) -> None:
        """Write a last one, and wait for it."""
        draft = self._draft(life, stream)
        if draft is not None:
            self._write(draft, draft.mirror.export_state())

    async def _keep_once(
        self,
        now: Callable[[], tuple[Life | None, Stream]],
        hold: Callable[[], AbstractContextManager[None]],
    ) -> None:
        with hold():
            draft = self._draft(*now())
            if draft is None:
                return
            state = await asyncio.to_thread(draft.mirror.export_state)
        await asyncio.to_thread(self._write, draft, state)

    def move_to(self, worker: Worker) -> None:
        """Go on for the rank that the engine says it is."""
        self._worker = worker

    def _draft(self, life: Life | None, stream: Stream) -> _Draft | None:
        """Return what is to be written; None: nothing new.

        The stream's last message is the last one that went into the mirror: both are brought on in
        one step of the event loop.
        """
        last = stream.last_message
        if self._state is None or life is None or last is None:
            return None
        place = (life.header.epoch, last.seq)
        if place == self._place_written:
            return None
        self._made += 1
        anchor = Anchor(last.seq, digest_of(last.payload))
        return _Draft(self._made, place, self._name, self._terms, anchor, life.mirror)

    def _write(self, draft: _Draft, state: memoryview) -> None:
        """Write on any thread. One that was made before the last one written comes too late."""
        with self._writing:
            if self._state is None or draft.number < self._written:
                return
            self._written = draft.number
            try:
                checkpoint = Checkpoint(draft.terms, draft.anchor, state)
                self._state.replace(draft.name, *encode_checkpoint(checkpoint))
                self._fails = False
                self._place_written = draft.place
                self._counters.checkpoints += 1
            except OSError as error:
                self._on_failure(error)

    def _on_failure(self, error: OSError) -> None:
        self._counters.state_failures += 1
        if not self._fails:
            self._fails = True
            log.warning("worker %s: no checkpoint: %s", self._worker, error)

    @property
    def _name(self) -> str:
        return f"{Owner(self._spec.cell, self._worker).name}.checkpoint"

    @property
    def _terms(self) -> Terms:
        spec = self._spec
        return Terms(spec.cell, str(self._worker), spec.engine, spec.model, spec.block_size)
