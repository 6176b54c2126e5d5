"""Protobuf to plain values and back; the only file that touches generated code."""

from collections.abc import Iterable

import numpy as np
from google.protobuf.message import DecodeError

from kvatlas_client.query import Query
from kvatlas_client.types import (
    CellTerms,
    Load,
    LogStatus,
    Matches,
    ReplicaStatus,
    Tier,
    TierDigest,
    WorkerInfo,
    WorkerKey,
    WorkersChange,
    WorkerState,
    WorkerStatus,
)
from kvatlas_wire.v1 import events_pb2, indexer_pb2

FIND_MATCHES = "/kvatlas.v1.Indexer/FindMatches"
WATCH_WORKERS = "/kvatlas.v1.Indexer/WatchWorkers"
GET_STATUS = "/kvatlas.v1.Indexer/GetStatus"

_STATES = {
    indexer_pb2.WORKER_STATE_LIVE: WorkerState.LIVE,
    indexer_pb2.WORKER_STATE_RECOVERING: WorkerState.RECOVERING,
    indexer_pb2.WORKER_STATE_STALE: WorkerState.STALE,
    indexer_pb2.WORKER_STATE_OVER_BUDGET: WorkerState.OVER_BUDGET,
}
_TIERS = {
    events_pb2.TIER_DEVICE: Tier.DEVICE,
    events_pb2.TIER_HOST: Tier.HOST,
    events_pb2.TIER_DISK: Tier.DISK,
    events_pb2.TIER_REMOTE: Tier.REMOTE,
}
# Field number and wire type 2 (bytes), as protobuf writes a packed field's key.
_CHUNK_HASHES_KEY = bytes([4 << 3 | 2])
_SEQUENCE_HASHES_KEY = bytes([5 << 3 | 2])


class Uneven(ValueError):  # noqa: N818 - the name says what happened
    """The parallel columns of an answer differ in length."""


# Everything that decoding can raise.
Undecodable = (Uneven, DecodeError)


def encode_query(query: Query) -> bytes:
    """A FindMatchesRequest; the packed hashes are appended as they lie in memory."""
    scalars = indexer_pb2.FindMatchesRequest(
        model=query.terms.model,
        block_size=query.terms.block_size,
        hash_contract=query.terms.hash_contract,
        limit=query.limit,
        exact=query.exact,
    ).SerializeToString()
    if not query.hashes.size:
        return scalars
    key = _CHUNK_HASHES_KEY if query.chunks else _SEQUENCE_HASHES_KEY
    packed = query.hashes.astype("<u8", copy=False).tobytes()
    return b"".join((scalars, key, _varint(len(packed)), packed))


def decode_matches(data: bytes, replica: str) -> Matches:
    """The columns of a FindMatchesResponse. Undecodable: malformed."""
    message = indexer_pb2.FindMatchesResponse.FromString(data)
    count = len(message.worker_ids)
    if len(message.dp_ranks) != count or len(message.depths) != count:
        raise Uneven("the answer's columns differ in length")
    return Matches(
        np.fromiter(message.worker_ids, np.uint64, count),
        np.fromiter(message.dp_ranks, np.uint32, count),
        np.fromiter(message.depths, np.uint32, count),
        replica,
    )


def encode_watch(terms: CellTerms) -> bytes:
    """A WatchWorkersRequest."""
    return indexer_pb2.WatchWorkersRequest(
        model=terms.model, block_size=terms.block_size, hash_contract=terms.hash_contract
    ).SerializeToString()


def decode_change(data: bytes, replica: str) -> tuple[WorkersChange, CellTerms]:
    """A WatchWorkersResponse, and what the cell speaks, which only the first one tells."""
    message = indexer_pb2.WatchWorkersResponse.FromString(data)
    change = WorkersChange(
        full=message.full,
        workers=tuple(_info(info) for info in message.workers),
        removed=tuple(WorkerKey(w.worker_id, w.dp_rank) for w in message.removed),
        replica=replica,
    )
    return change, CellTerms(message.model, message.block_size, message.hash_contract)


def encode_get_status() -> bytes:
    """A GetStatusRequest."""
    return indexer_pb2.GetStatusRequest().SerializeToString()


def decode_status(data: bytes) -> ReplicaStatus:
    """A GetStatusResponse."""
    message = indexer_pb2.GetStatusResponse.FromString(data)
    return ReplicaStatus(
        replica_id=message.replica_id,
        version=message.version,
        cell=message.cell,
        terms=CellTerms(message.model, message.block_size, message.hash_contract),
        ready=message.ready,
        workers=tuple(_status(worker) for worker in message.workers),
        memberships=message.memberships,
        index_bytes=message.index_bytes,
        counters=dict(message.counters),
        logs=tuple(
            LogStatus(log.transport, log.alive, log.records, log.lag_ms) for log in message.logs
        ),
    )


def _status(message: indexer_pb2.WorkerStatus) -> WorkerStatus:
    return WorkerStatus(
        info=_info(message.info),
        instance_id=message.instance_id,
        digests=_digests(message.digests),
        events_held_back=message.events_held_back,
        incomplete=message.incomplete,
    )


def _digests(messages: Iterable[events_pb2.TierDigest]) -> tuple[TierDigest, ...]:
    # A tier that this version does not know cannot be compared, so it is left out.
    return tuple(
        TierDigest(_TIERS[message.tier], message.blocks, message.digest)
        for message in messages
        if message.tier in _TIERS
    )


def _info(message: indexer_pb2.WorkerInfo) -> WorkerInfo:
    load = message.load
    return WorkerInfo(
        worker_id=message.worker.worker_id,
        dp_rank=message.worker.dp_rank,
        # A state of a later version: whatever it is, not one that is matched today.
        state=_STATES.get(message.state, WorkerState.STALE),
        epoch=message.epoch,
        engine_url=message.engine_url,
        publisher_rpc=message.publisher_rpc,
        role=message.role,
        labels=dict(message.labels),
        load=Load(load.requests_running, load.requests_waiting, load.kv_usage)
        if message.HasField("load")
        else None,
        capacity_blocks=message.capacity_blocks,
        blocks=message.blocks,
        last_event_id=message.last_event_id,
        heartbeat_age_ms=message.heartbeat_age_ms,
    )


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
