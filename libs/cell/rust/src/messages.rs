//! Conversions between workers' keys and their protobuf messages.

use kvatlas_index::WorkerKey;
use kvatlas_wire::v1;

/// A worker's key as a message.
pub(crate) fn worker_message(key: WorkerKey) -> v1::Worker {
    v1::Worker {
        worker_id: key.worker_id,
        dp_rank: key.dp_rank,
    }
}

/// A worker's key from its message.
pub(crate) fn worker_key(message: v1::Worker) -> WorkerKey {
    WorkerKey {
        worker_id: message.worker_id,
        dp_rank: message.dp_rank,
    }
}
