"""One epoch of one worker: a mirror, the numbering of what it says, and sealed records. Pure.

Batch borders are fixed here, once, before any transport sees them: by number of events and hashes.
"""

from collections.abc import Sequence

from kvatlas_engines import EngineEvent
from kvatlas_events import (
    BATCH_EVENTS_MAX,
    BATCH_HASHES_MAX,
    Batch,
    Event,
    Header,
    Heartbeat,
    Load,
    Remove,
    Shutdown,
    ShutdownReason,
    Store,
    encode_batch,
    snapshot_records,
)
from kvatlas_publisher.mirror import Mirror
from kvatlas_publisher.recent import RecentRecords


def next_epoch(now_unix_us: int, highest_seen: int) -> int:
    """Return an epoch above all that were seen, and near the wall clock."""
    return max(now_unix_us, highest_seen + 1)


class Life:
    """From a fresh mirror to its shutdown. Event ids count from 1.

    Args:
        header: of all its records.
        mirror: empty.
        recent_bytes_max: of the sealed records kept for replays.
    """

    def __init__(self, header: Header, mirror: Mirror, recent_bytes_max: int = 0) -> None:
        self.header = header
        self.mirror = mirror
        self.recent = RecentRecords(recent_bytes_max)
        self.last_event_id = 0
        """Of the events said so far, sealed or not."""
        self._pending: list[Event] = []
        self._pending_hashes = 0
        self._farewell: bytes | None = None

    @property
    def is_batch_full(self) -> bool:
        """What waits fills a batch."""
        return len(self._pending) >= BATCH_EVENTS_MAX or self._pending_hashes >= BATCH_HASHES_MAX

    @property
    def pending_events(self) -> int:
        """What was said and is in no record yet."""
        return len(self._pending)

    def apply(self, events: Sequence[EngineEvent]) -> None:
        """Put an engine's events into the mirror; what it says waits to be sealed."""
        self._say(self.mirror.apply(events))

    def shut_down(self, reason: ShutdownReason) -> bytes:
        """Return the record that ends this life; nothing may be pending, nothing may follow."""
        self.last_event_id += 1
        self._farewell = self._record(self.last_event_id, [Shutdown(reason)])
        return self._farewell

    def seal(self) -> list[bytes]:
        """Return the records of all that waits, in order."""
        records: list[bytes] = []
        batch: list[Event] = []
        hashes = 0
        first = self.last_event_id - len(self._pending) + 1
        for event in self._pending:
            size = _hashes(event)
            if batch and (len(batch) == BATCH_EVENTS_MAX or hashes + size > BATCH_HASHES_MAX):
                records.append(self._record(first, batch))
                first += len(batch)
                batch, hashes = [], 0
            batch.append(event)
            hashes += size
        if batch:
            records.append(self._record(first, batch))
        self._pending = []
        self._pending_hashes = 0
        return records

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

    def _say(self, events: Sequence[Event]) -> None:
        self._pending.extend(events)
        self._pending_hashes += sum(map(_hashes, events))
        self.last_event_id += len(events)

    def _record(self, first_event_id: int, events: Sequence[Event]) -> bytes:
        record = encode_batch(
            Batch(header=self.header, first_event_id=first_event_id, events=tuple(events))
        )
        self.recent.add(first_event_id, len(events), record)
        return record


def _hashes(event: Event) -> int:
    return len(event.sequence_hashes) if isinstance(event, Store | Remove) else 0
