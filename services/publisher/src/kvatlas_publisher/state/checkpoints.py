"""Writes one worker's mirror to the state directory, and resumes from it after a restart.

A mirror from disk is not published at once: the engine may have been restarted meanwhile. First the
engine has to replay the last message that went into the mirror, and that message must have the
remembered digest. Without this proof, or with other settings, the checkpoint is dropped, and the
epoch begins empty. A checkpoint that waits for its engine stays on disk, for the next start.

A checkpoint takes about 42 bytes a block. A thread exports the mirror, which takes a third of a
second for a million blocks, and writes the file. The event loop goes on meanwhile. Only this
engine's messages wait, because the mirror must not change during the export.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

from kvatlas_engines.effects import ResumePoint
from kvatlas_engines.sequencer import MessageSequencer
from kvatlas_publisher.context import WorkerContext
from kvatlas_publisher.epoch.epoch import Epoch
from kvatlas_publisher.epoch.worker_epochs import new_mirror
from kvatlas_publisher.mirror import Mirror
from kvatlas_publisher.state.checkpoint_file import (
    Checkpoint,
    CheckpointTerms,
    decode_checkpoint,
    encode_checkpoint,
)
from kvatlas_publisher.state.state_dir import StateCorrupt, StateDir

log = logging.getLogger(__name__)

_BLOCK_BYTES_MAX = 80
_NAMES_BYTES_MAX = 64 << 20
"""Room for the names of adapters and salts."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A checkpoint to be written."""

    number: int
    """Rises with every draft of this process."""
    position: tuple[int, int]
    """Epoch, and number of the last engine message applied."""
    file_name: str
    terms: CheckpointTerms
    resume_point: ResumePoint
    mirror: Mirror


class Checkpoints:
    """The checkpoint of one worker. Without a state directory nothing is read or written."""

    def __init__(self, context: WorkerContext) -> None:
        self.resume_point: ResumePoint | None = None
        """The message that the engine has to replay; None: there is nothing to resume."""
        self._context = context
        self._resumable: Mirror | None = None
        self._overdue_s: float | None = None
        self._drafts = 0
        self._written = 0
        self._written_position: tuple[int, int] | None = None
        self._write_lock = threading.Lock()
        self._writing: asyncio.Task[None] | None = None
        self._load()

    # --- from disk ---

    def resume(self) -> Mirror:
        """Return the mirror from disk, for an engine that has replayed the resume point."""
        mirror, self._resumable, self.resume_point = self._resumable, None, None
        if mirror is None:
            raise RuntimeError("there is no checkpoint to resume")
        self._context.counters.checkpoints_resumed += 1
        log.info("worker %s: continues from its checkpoint", self._context.worker)
        return mirror

    def is_overdue(self, now_s: float, timeout_s: float) -> bool:
        """Return whether `timeout_s` seconds have passed since this was first asked."""
        if self._overdue_s is None:
            self._overdue_s = now_s + timeout_s
        return now_s >= self._overdue_s

    def drop(self, reason: str) -> None:
        """Forget the mirror from disk, if it was not resumed."""
        if self._resumable is not None:
            self._resumable = self.resume_point = None
            self._on_dropped(reason)

    def _on_dropped(self, reason: str) -> None:
        self._context.counters.checkpoints_dropped += 1
        log.warning("worker %s: the checkpoint is not used: %s", self._context.worker, reason)

    def _load(self) -> None:
        context = self._context
        if context.state is None:
            return
        try:
            self._read(context.state)
        except StateCorrupt as error:
            context.counters.state_corrupt += 1
            log.warning("worker %s: %s", context.worker, error)
        except OSError as error:
            context.on_state_failure("checkpoints", error)

    def _read(self, state: StateDir) -> None:
        context, spec = self._context, self._context.spec
        blocks_max = context.settings.mirror_blocks_max
        bytes_max = _BLOCK_BYTES_MAX * blocks_max + _NAMES_BYTES_MAX
        content = state.read(self._file_name, bytes_max)
        if content is None:
            return
        if len(content) > bytes_max:
            self._on_dropped("it holds more blocks than are allowed")
            return
        try:
            checkpoint = decode_checkpoint(content)
        except StateCorrupt as error:
            raise state.set_aside(self._file_name, error) from None
        ours = asdict(self._terms)
        differs = [name for name, value in asdict(checkpoint.terms).items() if value != ours[name]]
        if differs:
            self._on_dropped(f"its {' and '.join(differs)} differs")
            return
        if spec.replay is None:
            self._on_dropped("without --replay the engine cannot prove that it was not restarted")
            return
        try:
            self._resumable = new_mirror(context, bytes(checkpoint.state))
        except ValueError as error:
            raise state.set_aside(self._file_name, StateCorrupt(str(error))) from None
        self.resume_point = checkpoint.resume_point

    # --- to disk ---

    async def run(
        self,
        sealed_position: Callable[[], tuple[Epoch | None, MessageSequencer]],
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Write a checkpoint every `checkpoint_s` seconds, if the mirror has changed.

        Inside of `paused()` nothing changes the mirror. After a cancellation the last write may
        still be under way, see `settled`.
        """
        interval_s = self._context.settings.checkpoint_s
        while self._context.state is not None and interval_s > 0:
            await asyncio.sleep(interval_s)
            # Shielded: a thread cannot be cancelled, so `settled` waits for it.
            self._writing = asyncio.create_task(self._write_one(sealed_position, paused))
            await asyncio.shield(self._writing)

    async def settled(self) -> None:
        """Wait until no thread reads the mirror, and all delayed messages are applied."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def save(self, epoch: Epoch | None, sequencer: MessageSequencer) -> None:
        """Write a checkpoint and wait until it is on disk."""
        draft = self._draft(epoch, sequencer)
        if draft is not None:
            self._write(draft, draft.mirror.export_state().data)

    async def _write_one(
        self,
        sealed_position: Callable[[], tuple[Epoch | None, MessageSequencer]],
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        with paused():
            draft = self._draft(*sealed_position())
            if draft is None:
                return
            state = await asyncio.to_thread(draft.mirror.export_state)
        await asyncio.to_thread(self._write, draft, state.data)

    def _draft(self, epoch: Epoch | None, sequencer: MessageSequencer) -> _Draft | None:
        """Return what to write; None: there is nothing new.

        The sequencer's last message is the last one that went into the mirror, because both advance
        in one step of the event loop.
        """
        last = sequencer.last_message
        if self._context.state is None or epoch is None or last is None:
            return None
        position = (epoch.header.epoch, last.seq)
        if position == self._written_position:
            return None
        self._drafts += 1
        resume_point = ResumePoint.of(last)
        return _Draft(
            self._drafts, position, self._file_name, self._terms, resume_point, epoch.mirror
        )

    def _write(self, draft: _Draft, state: memoryview) -> None:
        """Write a file, on any thread, unless a later draft was written before."""
        context = self._context
        with self._write_lock:
            if context.state is None or draft.number < self._written:
                return
            self._written = draft.number
            try:
                checkpoint = Checkpoint(draft.terms, draft.resume_point, state)
                context.state.replace(draft.file_name, *encode_checkpoint(checkpoint))
            except OSError as error:
                context.on_state_failure("checkpoints", error)
            else:
                self._written_position = draft.position
                context.counters.checkpoints += 1

    @property
    def _file_name(self) -> str:
        return f"{self._context.cell_worker.file_stem}.checkpoint"

    @property
    def _terms(self) -> CheckpointTerms:
        spec = self._context.spec
        return CheckpointTerms(
            spec.cell, str(self._context.worker), spec.engine, spec.model, spec.block_size
        )
