"""Decodes records in Python: the specification of what a batch on the wire means.

Indexers decode in Rust. Decoding checks everything: bytes that are not exactly one well-formed batch
raise `MalformedRecord` with the reason.
"""

from collections.abc import Iterable

import numpy as np
from google.protobuf.message import DecodeError

from kvatlas_events import (
    RECORD_BYTES_MAX,
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
    WorkerKey,
)
from kvatlas_events.codec import contract_error
from kvatlas_wire import FrameError, open_record
from kvatlas_wire.v1 import events_pb2 as pb

_TIERS: dict[int, Tier] = {pb.Tier.Value(f"TIER_{tier.name}"): tier for tier in Tier}
_REASONS: dict[int, ShutdownReason] = {
    pb.Shutdown.REASON_ENGINE_GONE: ShutdownReason.ENGINE_GONE,
    pb.Shutdown.REASON_PUBLISHER_LEAVING: ShutdownReason.PUBLISHER_LEAVING,
}


class MalformedRecord(ValueError):  # noqa: N818 - named for what it is
    """The bytes are no valid batch; the message says why. No part of them may be used."""


def decode_batch(record: bytes) -> Batch:
    """Return the batch that `record` carries.

    Raises:
        MalformedRecord: not a record, corrupt, or a batch that breaks the contract.
    """
    message = _open(record)
    if wrong := contract_error(message):
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


def _decode_header(message: pb.Header) -> Header:
    return Header(
        worker=WorkerKey(message.worker.worker_id, message.worker.dp_rank),
        epoch=message.epoch,
        instance_id=message.instance_id,
        cell=message.cell,
        model=message.model,
        block_size=message.block_size,
        hash_contract=message.hash_contract,
        publisher=message.publisher,
    )


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
            reason = _REASONS.get(message.shutdown.reason)
            if reason is None:
                raise MalformedRecord(f"a shutdown of unknown reason {message.shutdown.reason}")
            return Shutdown(reason)
        case None:
            raise MalformedRecord("an event of no kind that this build knows")


def _decode_snapshot(message: pb.Snapshot) -> SnapshotPart:
    return SnapshotPart(
        as_of_event_id=message.as_of_event_id,
        part=message.part,
        parts=message.parts,
        tier=_decode_tier(message.tier),
        sequence_hashes=_unpacked(message.sequence_hashes),
        digests=_decode_digests(message.digests),
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


def _decode_digests(messages: Iterable[pb.TierDigest]) -> tuple[TierDigest, ...]:
    return tuple(TierDigest(_decode_tier(m.tier), m.blocks, m.digest) for m in messages)


def _decode_tier(number: int) -> Tier:
    tier = _TIERS.get(number)
    if tier is None:
        raise MalformedRecord(f"a block on unknown tier {number}")
    return tier


def _unpacked(field: Iterable[int]) -> Hashes:
    return np.array(field, dtype=np.uint64)
