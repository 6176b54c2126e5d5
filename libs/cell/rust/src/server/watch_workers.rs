//! `WatchWorkers`: the whole worker table first, then its changes.
//!
//! A stream holds one message. A slow watcher gets everything that changed since its last message in one.

use std::sync::Arc;
use std::time::Duration;

use kvatlas_wire::v1;
use tokio::sync::mpsc;
use tonic::Status;

use super::blocking::run_blocking;
use super::stop::{Stop, stopped, stopping};
use crate::cell::Cell;
use crate::counters::Count;

/// Changes within this time go out as one message.
const COALESCE: Duration = Duration::from_millis(20);

/// Sends the table and its changes until the watcher is gone or the server stops.
pub async fn send(
    cell: Arc<Cell>,
    messages: mpsc::Sender<Result<v1::WatchWorkersResponse, Status>>,
    mut stop: Stop,
) {
    let mut version = cell.watch_version();
    let mut since = None;
    loop {
        version.mark_unchanged();
        let reader = Arc::clone(&cell);
        let Ok((seen, mut message)) = run_blocking(move || reader.changes(since)).await else {
            return;
        };
        if since.is_none() {
            add_terms(&cell, &mut message);
        }
        since = Some(seen);
        if message.full {
            cell.counters.add(Count::WatchFulls);
        }
        let is_empty = !message.full && message.workers.is_empty() && message.removed.is_empty();
        if !is_empty && messages.send(Ok(message)).await.is_err() {
            return;
        }
        tokio::select! {
            () = messages.closed() => return,
            _ = stopped(&mut stop) => {
                // If the queue is full, the watcher reads nothing, and the closed stream tells it.
                let _ = messages.try_send(Err(stopping()));
                return;
            }
            changed = version.changed() => if changed.is_err() { return },
        }
        tokio::time::sleep(COALESCE).await;
    }
}

/// Adds the cell's terms, which the first message carries.
fn add_terms(cell: &Cell, message: &mut v1::WatchWorkersResponse) {
    message.cell.clone_from(&cell.config.cell);
    message.model.clone_from(&cell.config.model);
    message.block_size = cell.config.block_size;
    message.hash_contract.clone_from(&cell.config.hash_contract);
}
