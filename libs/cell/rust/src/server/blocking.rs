//! Work that takes the worker table's lock, on the runtime's blocking threads.

use tonic::Status;

/// Runs `work` on a blocking thread, so that no look-up waits behind it on the same thread.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Status::internal("the indexer failed while it answered"))
}
