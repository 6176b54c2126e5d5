"""Encodes batches as records; the only file here that uses generated code.

Encoding raises `ValueError` for whatever an indexer would reject.

A hash array is encoded without a Python object per hash: protobuf parses a packed field made of the
array's bytes. That is nine times as fast as `extend(array.tolist())` for 65,536 hashes.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from kvatlas_events.model import (
    BATCH_EVENTS_MAX,
    BATCH_HASHES_MAX,
    RECORD_BYTES_MAX,
    SNAPSHOT_PART_HASHES_MAX,
    Batch,
    Clear,
    Event,
    Hashes,
    Header,
    Heartbeat,
    Remove,
    Shutdown,
    ShutdownReason,
    SnapshotPart,
    Store,
)
from kvatlas_wire import Tier, TierDigest, bytes_field, seal_record
from kvatlas_wire.v1 import events_pb2 as pb

_TIERS = {tier: pb.Tier.Value(f"TIER_{tier.name}") for tier in Tier}
_REASONS = {
    ShutdownReason.ENGINE_GONE: pb.Shutdown.REASON_ENGINE_GONE,
    ShutdownReason.PUBLISHER_LEAVING: pb.Shutdown.REASON_PUBLISHER_LEAVING,
}


def digest(hashes: Hashes) -> int:
    """Return the XOR of `hashes`; 0 for none."""
    return int(np.bitwise_xor.reduce(hashes, initial=np.uint64(0)))


def encode_header(header: Header) -> bytes:
    """Return the bytes of a header alone, for native code that writes records."""
    return _encode_header(header).SerializeToString()


def encode_batch(batch: Batch) -> bytes:
    """Return the sealed record that carries `batch`.

    Raises:
        ValueError: the batch is not exactly one of events, snapshot part and heartbeat, or is
            over a limit of `model`.
    """
    message = pb.Batch(header=_encode_header(batch.header), first_event_id=batch.first_event_id)
    message.events.extend(_encode_event(event) for event in batch.events)
    if batch.snapshot is not None:
        message.snapshot.CopyFrom(_encode_snapshot(batch.snapshot))
    if batch.heartbeat is not None:
        message.heartbeat.CopyFrom(_encode_heartbeat(batch.heartbeat))
    if wrong := contract_error(message):
        raise ValueError(wrong)
    record = seal_record(message.SerializeToString())
    if len(record) > RECORD_BYTES_MAX:
        raise ValueError(f"a record of {len(record)} bytes; at most {RECORD_BYTES_MAX}")
    return record


def snapshot_records(
    header: Header, as_of_event_id: int, hashes: Mapping[Tier, Hashes]
) -> list[bytes]:
    """Return the sealed records of a whole snapshot: `hashes` by tier, cut into parts.

    Tiers come from near to far, and hashes keep their order. An empty mirror gives one part without
    hashes.
    """
    held = [(tier, hashes[tier]) for tier in Tier if tier in hashes and len(hashes[tier])]
    digests = tuple(TierDigest(tier, len(array), digest(array)) for tier, array in held)
    cuts = [
        (tier, array[start : start + SNAPSHOT_PART_HASHES_MAX])
        for tier, array in held
        for start in range(0, len(array), SNAPSHOT_PART_HASHES_MAX)
    ] or [(Tier.DEVICE, np.empty(0, dtype=np.uint64))]
    return [
        encode_batch(
            Batch(
                header=header,
                snapshot=SnapshotPart(
                    as_of_event_id=as_of_event_id,
                    part=part,
                    parts=len(cuts),
                    tier=tier,
                    sequence_hashes=array,
                    digests=digests,
                ),
            )
        )
        for part, (tier, array) in enumerate(cuts)
    ]


def contract_error(message: pb.Batch) -> str | None:
    """Return the rule of the contract that the batch breaks, if any."""
    if not (message.HasField("header") and message.header.HasField("worker")):
        return "a batch without a header that names its worker"
    kinds = [
        kind
        for kind, present in (
            ("events", bool(message.events)),
            ("a snapshot part", message.HasField("snapshot")),
            ("a heartbeat", message.HasField("heartbeat")),
        )
        if present
    ]
    if len(kinds) != 1:
        return f"a batch of {' and '.join(kinds)}" if kinds else "a batch of nothing"
    if message.events:
        return _events_error(message)
    if message.first_event_id:
        return f"{kinds[0]} with event_id {message.first_event_id}: it uses none"
    if message.HasField("snapshot"):
        return _snapshot_error(message.snapshot)
    return None


def _events_error(message: pb.Batch) -> str | None:
    if message.first_event_id == 0:
        return "events without event_ids: they count from 1"
    if len(message.events) > BATCH_EVENTS_MAX:
        return f"{len(message.events)} events in a batch; at most {BATCH_EVENTS_MAX}"
    blocks = sum(
        len(event.store.sequence_hashes) + len(event.remove.sequence_hashes)
        for event in message.events
    )
    if blocks > BATCH_HASHES_MAX:
        return f"{blocks} hashes in a batch; at most {BATCH_HASHES_MAX}"
    if message.first_event_id + len(message.events) > 1 << 64:
        return f"event_ids past 64 bits: {len(message.events)} from {message.first_event_id}"
    return None


def _snapshot_error(snapshot: pb.Snapshot) -> str | None:
    if snapshot.part >= snapshot.parts:
        return f"snapshot part {snapshot.part} of {snapshot.parts}: parts count from 0"
    if len(snapshot.sequence_hashes) > SNAPSHOT_PART_HASHES_MAX:
        return (
            f"{len(snapshot.sequence_hashes)} hashes in a snapshot part; "
            f"at most {SNAPSHOT_PART_HASHES_MAX}"
        )
    return None


def _encode_header(header: Header) -> pb.Header:
    return pb.Header(
        worker=pb.Worker(worker_id=header.worker.worker_id, dp_rank=header.worker.dp_rank),
        epoch=header.epoch,
        instance_id=header.instance_id,
        cell=header.cell,
        model=header.model,
        block_size=header.block_size,
        hash_contract=header.hash_contract,
        publisher=header.publisher,
    )


def _encode_event(event: Event) -> pb.Event:
    match event:
        case Store():
            store = pb.Store(parent_sequence_hash=event.parent, tier=_TIERS[event.tier])
            store.MergeFromString(
                _packed(pb.Store.SEQUENCE_HASHES_FIELD_NUMBER, event.sequence_hashes)
            )
            return pb.Event(store=store)
        case Remove():
            remove = pb.Remove(tier=_TIERS[event.tier])
            remove.MergeFromString(
                _packed(pb.Remove.SEQUENCE_HASHES_FIELD_NUMBER, event.sequence_hashes)
            )
            return pb.Event(remove=remove)
        case Clear():
            tier = None if event.tier is None else _TIERS[event.tier]
            return pb.Event(clear=pb.Clear(tier=tier))
        case Shutdown():
            return pb.Event(shutdown=pb.Shutdown(reason=_REASONS[event.reason]))


def _encode_snapshot(snapshot: SnapshotPart) -> pb.Snapshot:
    message = pb.Snapshot(
        as_of_event_id=snapshot.as_of_event_id,
        part=snapshot.part,
        parts=snapshot.parts,
        tier=_TIERS[snapshot.tier],
        digests=_encode_digests(snapshot.digests),
    )
    message.MergeFromString(
        _packed(pb.Snapshot.SEQUENCE_HASHES_FIELD_NUMBER, snapshot.sequence_hashes)
    )
    return message


def _encode_heartbeat(heartbeat: Heartbeat) -> pb.Heartbeat:
    load = heartbeat.load
    return pb.Heartbeat(
        last_event_id=heartbeat.last_event_id,
        digests=_encode_digests(heartbeat.digests),
        load=None
        if load is None
        else pb.Load(
            requests_running=load.requests_running,
            requests_waiting=load.requests_waiting,
            kv_usage=load.kv_usage,
        ),
        capacity_blocks=heartbeat.capacity_blocks,
        engine_url=heartbeat.engine_url,
        publisher_rpc=heartbeat.publisher_rpc,
        role=heartbeat.role,
        labels=heartbeat.labels,
        sent_unix_us=heartbeat.sent_unix_us,
    )


def _encode_digests(digests: Iterable[TierDigest]) -> list[pb.TierDigest]:
    return [
        pb.TierDigest(tier=_TIERS[each.tier], blocks=each.blocks, digest=each.digest)
        for each in digests
    ]


def _packed(field_number: int, hashes: Hashes) -> bytes:
    return bytes_field(field_number, hashes.astype("<u8", copy=False).tobytes())
