"""A publisher's records, built by hand from the protos, independent of the publisher's codec."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvatlas_wire import seal_record
from kvatlas_wire.v1 import events_pb2 as pb

CONTRACT = "xxh3-1337-v1"


def store(*hashes: int, tier: "pb.Tier.ValueType" = pb.TIER_DEVICE) -> pb.Event:
    return pb.Event(store=pb.Store(sequence_hashes=hashes, tier=tier))


def remove(*hashes: int, tier: "pb.Tier.ValueType" = pb.TIER_DEVICE) -> pb.Event:
    return pb.Event(remove=pb.Remove(sequence_hashes=hashes, tier=tier))


def clear(tier: "pb.Tier.ValueType | None" = None) -> pb.Event:
    return pb.Event(clear=pb.Clear(tier=tier))


def shutdown(reason: "pb.Shutdown.Reason.ValueType") -> pb.Event:
    return pb.Event(shutdown=pb.Shutdown(reason=reason))


def digest(hashes: Iterable[int], tier: "pb.Tier.ValueType" = pb.TIER_DEVICE) -> pb.TierDigest:
    summed = pb.TierDigest(tier=tier)
    for hash_ in hashes:
        summed.blocks += 1
        summed.digest ^= hash_
    return summed


@dataclass
class RecordSource:
    """The records of one publisher of one worker."""

    worker_id: int = 1
    dp_rank: int = 0
    epoch: int = 1_000
    instance_id: int = 77
    cell: str = "blue"
    model: str = "model"
    block_size: int = 16
    hash_contract: str = CONTRACT
    last_event_id: int = field(default=0, init=False)

    def header(self) -> pb.Header:
        return pb.Header(
            worker=pb.Worker(worker_id=self.worker_id, dp_rank=self.dp_rank),
            epoch=self.epoch,
            instance_id=self.instance_id,
            cell=self.cell,
            model=self.model,
            block_size=self.block_size,
            hash_contract=self.hash_contract,
            publisher="test",
        )

    def events(self, *events: pb.Event, first: int | None = None) -> bytes:
        """Return the next events, or with `first` events that begin with that number."""
        if first is None:
            first = self.last_event_id + 1
        self.last_event_id = max(self.last_event_id, first + len(events) - 1)
        batch = pb.Batch(header=self.header(), first_event_id=first, events=events)
        return seal_record(batch.SerializeToString())

    def heartbeat(
        self,
        hashes: Sequence[int] | None = None,
        *,
        last: int | None = None,
        facts: pb.Heartbeat | None = None,
    ) -> bytes:
        """Return a heartbeat, with the digest of the device tier if `hashes` are given."""
        beat = pb.Heartbeat(
            last_event_id=self.last_event_id if last is None else last,
            digests=[] if hashes is None else [digest(hashes)],
        )
        if facts is not None:
            beat.MergeFrom(facts)
        return seal_record(pb.Batch(header=self.header(), heartbeat=beat).SerializeToString())

    def snapshot(self, *parts: Sequence[int], as_of: int | None = None) -> list[bytes]:
        """Return a snapshot of the device tier, cut into these parts."""
        whole = [digest(hash_ for part in parts for hash_ in part)]
        return [
            seal_record(
                pb.Batch(
                    header=self.header(),
                    snapshot=pb.Snapshot(
                        as_of_event_id=self.last_event_id if as_of is None else as_of,
                        part=number,
                        parts=len(parts),
                        tier=pb.TIER_DEVICE,
                        sequence_hashes=part,
                        digests=whole,
                    ),
                ).SerializeToString()
            )
            for number, part in enumerate(parts)
        ]
