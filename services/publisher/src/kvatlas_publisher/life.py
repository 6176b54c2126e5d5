"""One epoch of one worker: a mirror, the numbering of what it says, and sealed records. Pure.

Batch borders are fixed here, once, before any transport sees them: by number of events and hashes.
"""

from collections.abc import Sequence

from kvatlas_engines import EngineEvent
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
from kvatlas_native import Heard
from kvatlas_publisher.mirror import Mirror
from kvatlas_publisher.recent import RecentRecords


def next_epoch(now_unix_us: int, highest_seen: int) -> int:
    """Return an epoch above all that were seen, and near the wall clock."""
    return max(now_unix_us, highest_seen + 1)


class Life:
    """From a fresh mirror, or one that outlived a restart, to its shutdown. Event ids count from 1.

    Args:
        header: of all its records.
        mirror: empty, unless `resumed`.
        recent_bytes_max: of the sealed records kept for replays.
        resumed: it opens with a snapshot, which has to be sent. The snapshot counts as event 1 and
            not as 0, which a receiver that lost it would take for the beginning of an empty set.
    """

    def __init__(
        self, header: Header, mirror: Mirror, recent_bytes_max: int = 0, *, resumed: bool = False
    ) -> None:
        self.header = header
        self.mirror = mirror
        self._sealed_event_id = 1 if resumed else 0
        self.recent = RecentRecords(recent_bytes_max, self._sealed_event_id + 1)
        self._encoded_header = encode_header(header)
        self._farewell: bytes | None = None

    @property
    def last_event_id(self) -> int:
        """Of the events said so far, sealed or not."""
        return self._sealed_event_id + self.mirror.pending_events

    @property
    def is_batch_full(self) -> bool:
        """What waits fills a batch."""
        return self.mirror.is_batch_full

    @property
    def pending_events(self) -> int:
        """What was said and is in no record yet."""
        return self.mirror.pending_events

    def tell(self, payloads: Sequence[bytes]) -> Heard:
        """Put an engine's messages into the mirror; what it says waits to be sealed."""
        return self.mirror.tell(payloads, self.header.worker.dp_rank)

    def apply(self, events: Sequence[EngineEvent]) -> None:
        """The same, of one message that was decoded already."""
        self.mirror.put(events)

    def shut_down(self, reason: ShutdownReason) -> bytes:
        """Return the record that ends this life; nothing may be pending, nothing may follow."""
        batch = Batch(
            header=self.header,
            first_event_id=self._sealed_event_id + 1,
            events=(Shutdown(reason),),
        )
        self._farewell = encode_batch(batch)
        self._keep(1, self._farewell)
        return self._farewell

    def seal(self) -> list[bytes]:
        """Return the records of all that waits, in order."""
        sealed = self.mirror.seal(self._encoded_header, self._sealed_event_id + 1)
        for events, record in sealed:
            self._keep(events, record)
        return [record for _, record in sealed]

    def snapshot(self) -> list[bytes]:
        """Return the whole mirror as of the last event id, and the end, if it has come.

        Nothing may be pending.
        """
        hashes = self.mirror.snapshot()
        if self._farewell is None:
            return snapshot_records(self.header, self.last_event_id, hashes)
        whole = snapshot_records(self.header, self.last_event_id - 1, hashes)
        return [*whole, self._farewell]

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
        """Return the record that says what a receiver should have by now; nothing may be pending."""
        beat = Heartbeat(
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
        return encode_batch(Batch(header=self.header, heartbeat=beat))

    def _keep(self, events: int, record: bytes) -> None:
        self.recent.add(self._sealed_event_id + 1, events, record)
        self._sealed_event_id += events
