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
from kvatlas_client.transport import Backend
from kvatlas_client.types import (
    CellTerms,
    Load,
    LogStatus,
    Matches,
    ReplicaHealth,
    ReplicaStatus,
    Tier,
    TierDigest,
    WorkerInfo,
    WorkerKey,
    WorkersChange,
    WorkerState,
    WorkerStatus,
)

__all__ = [
    "AsyncIndexer",
    "Backend",
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
