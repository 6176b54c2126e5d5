"""How a replica gets its first state: from its newest file, else from a peer, else from the log alone.

All of it happens before the first record is read, so what it gives can be as old as it likes: the
log is read on from where that state had read it. Nothing here can keep a replica from starting.
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
from kvatlas_indexer.snapshots import StateFiles
from kvatlas_native import Cell, Restore, Restored, RestoreRefused

log = logging.getLogger(__name__)


class Source(StrEnum):
    """Where the first state came from."""

    FILE = "file"
    PEER = "peer"
    LOG = "log"
    """The log alone."""


class Start:
    """One replica's start. `run` once; the rest may be read at any time."""

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
        self.peers_passed_over: Counter[str] = Counter()
        """Peers whose state could not be used, by why."""

    async def run(self) -> Mapping[str, LogPosition]:
        """Fill the empty cell as far as possible; return per transport where its log goes on."""
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
                why, text = "unreachable", str(error) or "it does not answer"
            except Declined as error:
                why, text = "declined", str(error)
            except RestoreRefused as refusal:
                why, text = refusal.args
            else:
                self.source = Source.PEER
                log.info(
                    "started from the peer %s: %d workers, %d blocks",
                    peer,
                    restored.workers,
                    restored.memberships,
                )
                return restored
            self.peers_passed_over[why] += 1
            log.warning("the state of the peer %s is passed over, %s: %s", peer, why, text)
        return None

    async def _from_peer(self, peer: HostPort) -> Restored:
        restore = Restore(self._cell)
        async with aclosing(dump_of(peer, patience_s=self._patience_s)) as slices:
            async for part in slices:
                await asyncio.to_thread(restore.feed, part)
        return await asyncio.to_thread(restore.finish, self._unix_ms())
