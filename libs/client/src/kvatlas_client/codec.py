"""Encodes requests and decodes answers of `WatchWorkers` and `GetStatus`.

This is the only file that uses generated code. A malformed answer raises `DecodeError`.
"""

from collections.abc import Iterable

from kvatlas_client.types import (
    CellTerms,
    LogStatus,
    ReplicaStatus,
    WorkerInfo,
    WorkersChange,
    WorkerState,
    WorkerStatus,
)
from kvatlas_wire import Load, Tier, TierDigest, WorkerKey
from kvatlas_wire.v1 import events_pb2, indexer_pb2

WATCH_WORKERS = "/kvatlas.v1.Indexer/WatchWorkers"
GET_STATUS = "/kvatlas.v1.Indexer/GetStatus"

_STATES = {
    indexer_pb2.WORKER_STATE_LIVE: WorkerState.LIVE,
    indexer_pb2.WORKER_STATE_RECOVERING: WorkerState.RECOVERING,
    indexer_pb2.WORKER_STATE_STALE: WorkerState.STALE,
    indexer_pb2.WORKER_STATE_OVER_BUDGET: WorkerState.OVER_BUDGET,
}
_TIERS = {events_pb2.Tier.Value(f"TIER_{tier.name}"): tier for tier in Tier}


def encode_watch(terms: CellTerms) -> bytes:
    """Encode a WatchWorkersRequest."""
    return indexer_pb2.WatchWorkersRequest(
        model=terms.model, block_size=terms.block_size, hash_contract=terms.hash_contract
    ).SerializeToString()


def decode_change(data: bytes, replica: str) -> tuple[WorkersChange, CellTerms]:
    """Decode a WatchWorkersResponse, and the cell's terms, which only the first one has."""
    message = indexer_pb2.WatchWorkersResponse.FromString(data)
    change = WorkersChange(
        full=message.full,
        workers=tuple(_info(info) for info in message.workers),
        removed=tuple(WorkerKey(w.worker_id, w.dp_rank) for w in message.removed),
        replica=replica,
    )
    return change, CellTerms(message.model, message.block_size, message.hash_contract)


def encode_get_status() -> bytes:
    """Encode a GetStatusRequest."""
    return indexer_pb2.GetStatusRequest().SerializeToString()


def decode_status(data: bytes) -> ReplicaStatus:
    """Decode a GetStatusResponse."""
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
        # A state that this version does not know counts as stale: not matched.
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
