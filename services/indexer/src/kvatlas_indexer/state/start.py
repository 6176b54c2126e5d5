"""Gives a replica its first state: from its newest file, else from a peer, else from the log alone.

This happens before the first record is read. The state may be old, since the log is then read from
the position of that state. No failure here keeps a replica from starting.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from enum import StrEnum

from kvatlas_chassis import HostPort
from kvatlas_events import LogPosition
from kvatlas_indexer.rpc import Declined, Unreachable, dump_of
from kvatlas_indexer.state.files import StateFiles
from kvatlas_native import Cell, Restore, Restored, RestoreRefused

log = logging.getLogger(__name__)


class Source(StrEnum):
    """The source of the first state."""

    FILE = "file"
    PEER = "peer"
    LOG = "log"
    """Only the log."""


class Start:
    """The start of one replica. Call `run` once; the attributes may be read at any time."""

    def __init__(
        self,
        cell: Cell,
        files: StateFiles | None,
        peers: Sequence[HostPort],
        *,
        patience_s: float,
        unix_ms: Callable[[], int],
    ) -> None:
        self._cell = cell
        self._files = files
        self._peers = peers
        self._patience_s = patience_s
        self._unix_ms = unix_ms
        self.source: Source | None = None
        self.peers_skipped: Counter[str] = Counter()
        """Peers whose state could not be used, by reason."""

    async def run(self) -> Mapping[str, LogPosition]:
        """Restore a state into the empty cell, if there is one; return by transport its log position."""
        restored = None
        self.source = Source.LOG
        if self._files is not None:
            restored = await asyncio.to_thread(self._files.restore, self._cell, self._unix_ms)
            if restored is not None:
                self.source = Source.FILE
        if restored is None:
            restored = await self._from_peers()
        if restored is None:
            return {}
        return {
            transport: LogPosition(identity, entry)
            for transport, (identity, entry) in restored.positions.items()
        }

    async def _from_peers(self) -> Restored | None:
        for peer in self._peers:
            try:
                restored = await self._from_peer(peer)
            except (Unreachable, TimeoutError) as error:
                reason, text = "unreachable", str(error) or "it does not answer"
            except Declined as error:
                reason, text = "declined", str(error)
            except RestoreRefused as refusal:
                reason, text = refusal.args
            else:
                self.source = Source.PEER
                log.info(
                    "started from the peer %s: %d workers, %d blocks",
                    peer,
                    restored.workers,
                    restored.memberships,
                )
                return restored
            self.peers_skipped[reason] += 1
            log.warning("the state of the peer %s is skipped, %s: %s", peer, reason, text)
        return None

    async def _from_peer(self, peer: HostPort) -> Restored:
        restore = Restore(self._cell)
        async with aclosing(dump_of(peer, patience_s=self._patience_s)) as slices:
            async for part in slices:
                await asyncio.to_thread(restore.feed, part)
        return await asyncio.to_thread(restore.finish, self._unix_ms())
