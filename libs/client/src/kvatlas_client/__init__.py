"""FindMatches for any frontend: replicas, deadline, fail-over."""

from kvatlas_client.async_indexer import AsyncIndexer
from kvatlas_client.errors import (
    CallFailed,
    CellMismatch,
    IndexerError,
    NoReplicaAnswered,
    QueryRejected,
)
from kvatlas_client.indexer import Indexer
from kvatlas_client.types import (
    CellTerms,
    LogStatus,
    ReplicaHealth,
    ReplicaStatus,
    WorkerInfo,
    WorkersChange,
    WorkerState,
    WorkerStatus,
)
from kvatlas_native import Matches
from kvatlas_wire import Load, Tier, TierDigest, WorkerKey

__all__ = [
    "AsyncIndexer",
    "CallFailed",
    "CellMismatch",
    "CellTerms",
    "Indexer",
    "IndexerError",
    "Load",
    "LogStatus",
    "Matches",
    "NoReplicaAnswered",
    "QueryRejected",
    "ReplicaHealth",
    "ReplicaStatus",
    "Tier",
    "TierDigest",
    "WorkerInfo",
    "WorkerKey",
    "WorkerState",
    "WorkerStatus",
    "WorkersChange",
]
