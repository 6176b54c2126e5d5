"""Between the model and the bytes of a record; the only file here that knows generated code.

Decoding believes nothing: what is not exactly one well-formed batch is a `MalformedRecord` that
says what is wrong with it. Encoding refuses, with `ValueError`, what decoding would.

A hash array crosses without a Python object per hash: encoding parses a packed field built from
the array's own bytes, nine times as fast as `extend(array.tolist())` for 65,536 hashes; decoding
copies through the repeated field's array interface.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from google.protobuf.message import DecodeError

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
    Load,
    Remove,
    Shutdown,
    ShutdownReason,
    SnapshotPart,
    Store,
    Tier,
    TierDigest,
    Worker,
)
from kvatlas_wire import FrameError, open_record, seal_record
from kvatlas_wire.v1 import events_pb2 as pb

_TIERS = {
    Tier.DEVICE: pb.TIER_DEVICE,
    Tier.HOST: pb.TIER_HOST,
    Tier.DISK: pb.TIER_DISK,
    Tier.REMOTE: pb.TIER_REMOTE,
}
_TIERS_BACK: dict[int, Tier] = {number: tier for tier, number in _TIERS.items()}
_REASONS = {
    ShutdownReason.ENGINE_GONE: pb.Shutdown.REASON_ENGINE_GONE,
    ShutdownReason.PUBLISHER_LEAVING: pb.Shutdown.REASON_PUBLISHER_LEAVING,
}
_REASONS_BACK: dict[int, ShutdownReason] = {number: reason for reason, number in _REASONS.items()}


class MalformedRecord(ValueError):  # noqa: N818 - named for what it is, as the log's readers say it
    """The bytes are no batch of ours; the message says what is wrong. Nothing of it may be used."""


def digest(hashes: Hashes) -> int:
    """Return the XOR of `hashes`; 0 of none."""
    return int(np.bitwise_xor.reduce(hashes, initial=np.uint64(0)))


def encode_header(header: Header) -> bytes:
    """Return the bytes of a header by itself, for those who write records from columns."""
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
    if wrong := _shape_error(message):
        raise ValueError(wrong)
    record = seal_record(message.SerializeToString())
    if len(record) > RECORD_BYTES_MAX:
        raise ValueError(f"a record of {len(record)} bytes; at most {RECORD_BYTES_MAX}")
    return record


def decode_batch(record: bytes) -> Batch:
    """Return the batch that `record` carries.

    Raises:
        MalformedRecord: not a record, corrupt, or a batch that breaks the contract.
    """
    message = _open(record)
    if wrong := _shape_error(message):
        raise MalformedRecord(wrong)
    return Batch(
        header=_decode_header(message.header),
        first_event_id=message.first_event_id,
        events=tuple(_decode_event(event) for event in message.events),
        snapshot=_decode_snapshot(message.snapshot) if message.HasField("snapshot") else None,
        heartbeat=_decode_heartbeat(message.heartbeat) if message.HasField("heartbeat") else None,
    )


def _open(record: bytes) -> pb.Batch:
    if len(record) > RECORD_BYTES_MAX:
        raise MalformedRecord(f"a record of {len(record)} bytes; at most {RECORD_BYTES_MAX}")
    try:
        return pb.Batch.FromString(open_record(record))
    except FrameError as error:
        raise MalformedRecord(str(error)) from error
    except DecodeError as error:
        raise MalformedRecord("the payload is not an encoded batch") from error


def snapshot_records(
    header: Header, as_of_event_id: int, hashes: Mapping[Tier, Hashes]
) -> list[bytes]:
    """Return the sealed records of a whole snapshot: `hashes` by tier, cut into parts.

    Tiers come from near to far; the hashes of one keep their order. An empty mirror is one part
    without hashes.
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


def _shape_error(message: pb.Batch) -> str | None:
    """Say which rule of the contract between kinds and limits the batch breaks, if any."""
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


def _decode_header(message: pb.Header) -> Header:
    return Header(
        worker=Worker(message.worker.worker_id, message.worker.dp_rank),
        epoch=message.epoch,
        instance_id=message.instance_id,
        cell=message.cell,
        model=message.model,
        block_size=message.block_size,
        hash_contract=message.hash_contract,
        publisher=message.publisher,
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


def _decode_event(message: pb.Event) -> Event:
    match message.WhichOneof("kind"):
        case "store":
            store = message.store
            parent = store.parent_sequence_hash if store.HasField("parent_sequence_hash") else None
            return Store(parent, _unpacked(store.sequence_hashes), _decode_tier(store.tier))
        case "remove":
            remove = message.remove
            return Remove(_unpacked(remove.sequence_hashes), _decode_tier(remove.tier))
        case "clear":
            clear = message.clear
            return Clear(_decode_tier(clear.tier) if clear.HasField("tier") else None)
        case "shutdown":
            reason = _REASONS_BACK.get(message.shutdown.reason)
            if reason is None:
                raise MalformedRecord(f"a shutdown of unknown reason {message.shutdown.reason}")
            return Shutdown(reason)
        case None:
            raise MalformedRecord("an event of no kind that this build knows")


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


def _decode_snapshot(message: pb.Snapshot) -> SnapshotPart:
    return SnapshotPart(
        as_of_event_id=message.as_of_event_id,
        part=message.part,
        parts=message.parts,
        tier=_decode_tier(message.tier),
        sequence_hashes=_unpacked(message.sequence_hashes),
        digests=_decode_digests(message.digests),
    )


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


def _decode_heartbeat(message: pb.Heartbeat) -> Heartbeat:
    load = message.load
    return Heartbeat(
        last_event_id=message.last_event_id,
        digests=_decode_digests(message.digests),
        load=Load(
            requests_running=load.requests_running,
            requests_waiting=load.requests_waiting,
            kv_usage=load.kv_usage,
        )
        if message.HasField("load")
        else None,
        capacity_blocks=message.capacity_blocks,
        engine_url=message.engine_url,
        publisher_rpc=message.publisher_rpc,
        role=message.role,
        labels=dict(message.labels),
        sent_unix_us=message.sent_unix_us,
    )


def _encode_digests(digests: Iterable[TierDigest]) -> list[pb.TierDigest]:
    return [
        pb.TierDigest(tier=_TIERS[each.tier], blocks=each.blocks, digest=each.digest)
        for each in digests
    ]


def _decode_digests(messages: Iterable[pb.TierDigest]) -> tuple[TierDigest, ...]:
    return tuple(TierDigest(_decode_tier(m.tier), m.blocks, m.digest) for m in messages)


def _decode_tier(number: int) -> Tier:
    tier = _TIERS_BACK.get(number)
    if tier is None:
        raise MalformedRecord(f"a block on unknown tier {number}")
    return tier


def _packed(field_number: int, hashes: Hashes) -> bytes:
    """Return the wire bytes of a `repeated fixed64` field; little-endian, as protobuf has it."""
    content = hashes.astype("<u8", copy=False).tobytes()
    length = len(content)
    head = bytearray([field_number << 3 | 2])  # wire type 2: length-delimited
    while length >= 0x80:  # noqa: PLR2004 - the continuation bit of a varint
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + content


def _unpacked(field: Iterable[int]) -> Hashes:
    return np.array(field, dtype=np.uint64)
