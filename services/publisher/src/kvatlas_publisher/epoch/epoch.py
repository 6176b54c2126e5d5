"""One epoch of one worker: a mirror, the event ids of its changes, and sealed records. Pure.

A record's borders are fixed here, before any transport sees it, by number of events and of hashes.
"""

from collections.abc import Sequence

from kvatlas_events import (
    Batch,
    Header,
    Heartbeat,
    Load,
    Shutdown,
    ShutdownReason,
    encode_batch,
    encode_header,
    snapshot_records,
)
from kvatlas_native import ApplyOutcome
from kvatlas_publisher.epoch.replay_ring import ReplayRing
from kvatlas_publisher.mirror import Mirror


class Epoch:
    """An epoch from its first event to its shutdown. Event ids count from 1.

    Args:
        header: the header of all its records.
        mirror: empty, unless `resumed`.
        replay_bytes_max: bound of the sealed records kept for replays.
        resumed: `mirror` comes from a checkpoint, so receivers need a snapshot first. The snapshot
            counts as event 1, not as 0: a receiver that lost it would take 0 for an empty set.
    """

    def __init__(
        self, header: Header, mirror: Mirror, replay_bytes_max: int = 0, *, resumed: bool = False
    ) -> None:
        self.header = header
        self.mirror = mirror
        self._sealed_event_id = 1 if resumed else 0
        self.replay_ring = ReplayRing(replay_bytes_max, self._sealed_event_id + 1)
        self._encoded_header = encode_header(header)
        self._shutdown_record: bytes | None = None

    @property
    def last_event_id(self) -> int:
        """Id of the newest event, sealed or not."""
        return self._sealed_event_id + self.mirror.pending_events

    def apply_payloads(self, payloads: Sequence[bytes]) -> ApplyOutcome:
        """Apply an engine's messages to the mirror; the changes wait to be sealed."""
        return self.mirror.apply_payloads(payloads, self.header.worker.dp_rank)

    def seal(self) -> list[bytes]:
        """Return the records of all pending events, in order."""
        sealed = self.mirror.seal(self._encoded_header, self._sealed_event_id + 1)
        for events, record in sealed:
            self._add(events, record)
        return [record for _, record in sealed]

    def shut_down(self, reason: ShutdownReason) -> bytes:
        """Return the record that ends the epoch; no event may be pending, and none may follow."""
        batch = Batch(
            header=self.header,
            first_event_id=self._sealed_event_id + 1,
            events=(Shutdown(reason),),
        )
        self._shutdown_record = encode_batch(batch)
        self._add(1, self._shutdown_record)
        return self._shutdown_record

    def snapshot(self) -> list[bytes]:
        """Return the mirror's published set as of the last event; no event may be pending.

        If the epoch has ended, its shutdown record follows.
        """
        hashes = self.mirror.snapshot()
        if self._shutdown_record is None:
            return snapshot_records(self.header, self.last_event_id, hashes)
        snapshot = snapshot_records(self.header, self.last_event_id - 1, hashes)
        return [*snapshot, self._shutdown_record]

    def heartbeat(
        self,
        *,
        load: Load | None,
        engine_url: str,
        publisher_rpc: str,
        role: str,
        labels: dict[str, str],
        now_unix_us: int,
    ) -> bytes:
        """Return a record with the last event id and the digests; no event may be pending."""
        heartbeat = Heartbeat(
            last_event_id=self.last_event_id,
            digests=self.mirror.digests(),
            load=load,
            capacity_blocks=self.mirror.capacity_blocks,
            engine_url=engine_url,
            publisher_rpc=publisher_rpc,
            role=role,
            labels=labels,
            sent_unix_us=now_unix_us,
        )
        return encode_batch(Batch(header=self.header, heartbeat=heartbeat))

    def _add(self, events: int, record: bytes) -> None:
        self.replay_ring.add(self._sealed_event_id + 1, events, record)
        self._sealed_event_id += events
