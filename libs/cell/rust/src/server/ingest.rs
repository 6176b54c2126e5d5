//! `Ingest`: publishers push their records, and each request is answered once it is applied.
//!
//! One task reads requests and another applies them, so that a stream's next request is received while the one before
//! goes into the index. Requests that wait together are applied together. If requests come faster than they are
//! applied, the stream is not read any further, and its sender waits.

use std::sync::Arc;

use kvatlas_wire::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::{Status, Streaming};

use super::blocking::run_blocking;
use super::stop::{Stop, stopped, stopping};
use crate::cell::Cell;
use crate::counters::Count;

/// A wall clock, in ms since the Unix epoch.
pub type Clock = fn() -> u64;

/// Bounds of the requests of one stream that are received and not yet applied. In bytes it is about the size that
/// publishers cut requests to, so that the next one is received while one is applied.
const WAITING_MAX: usize = 64;
const WAITING_BYTES_MAX: usize = 256 << 10;

/// A request, and its share of the bytes that may wait.
type Request = Result<(v1::IngestRequest, OwnedSemaphorePermit), Status>;
type Answer = Result<v1::IngestResponse, Status>;

/// Serves one stream until it ends, its caller is gone or the server stops.
pub async fn serve(
    cell: Arc<Cell>,
    clock: Clock,
    requests: Streaming<v1::IngestRequest>,
    answers: mpsc::Sender<Answer>,
    stop: Stop,
) {
    let (received, waiting) = mpsc::channel(WAITING_MAX);
    tokio::join!(
        receive(requests, received, stop),
        answer(cell, clock, waiting, answers)
    );
}

async fn receive(
    mut requests: Streaming<v1::IngestRequest>,
    received: mpsc::Sender<Request>,
    mut stop: Stop,
) {
    let room = Arc::new(Semaphore::new(WAITING_BYTES_MAX));
    loop {
        let request = tokio::select! {
            request = with_room(&mut requests, &room) => request.transpose(),
            _ = stopped(&mut stop) => Some(Err(stopping())),
            () = received.closed() => None,
        };
        let Some(request) = request else { return };
        let is_last = request.is_err();
        if received.send(request).await.is_err() || is_last {
            return;
        }
    }
}

/// The next request, once there is room for it to wait.
async fn with_room(
    requests: &mut Streaming<v1::IngestRequest>,
    room: &Arc<Semaphore>,
) -> Result<Option<(v1::IngestRequest, OwnedSemaphorePermit)>, Status> {
    let Some(request) = requests.message().await? else {
        return Ok(None);
    };
    let bytes: usize = request.records.iter().map(Vec::len).sum();
    // A request larger than the bound waits until it is alone.
    let share = bytes.min(WAITING_BYTES_MAX) as u32;
    let taken = Arc::clone(room).acquire_many_owned(share).await;
    let permit = taken.map_err(|_| Status::internal("the semaphore is never closed"))?;
    Ok(Some((request, permit)))
}

async fn answer(
    cell: Arc<Cell>,
    clock: Clock,
    mut waiting: mpsc::Receiver<Request>,
    answers: mpsc::Sender<Answer>,
) {
    let mut requests = Vec::with_capacity(WAITING_MAX);
    while waiting.recv_many(&mut requests, WAITING_MAX).await > 0 {
        let (cell, now_ms) = (Arc::clone(&cell), clock());
        let taken = std::mem::take(&mut requests);
        let done = run_blocking(move || apply_all(&cell, taken, now_ms)).await;
        for answer in done.unwrap_or_else(|status| vec![Err(status)]) {
            let is_last = answer.is_err();
            if answers.send(answer).await.is_err() || is_last {
                return;
            }
        }
    }
}

fn apply_all(cell: &Cell, requests: Vec<Request>, now_ms: u64) -> Vec<Answer> {
    // The permit is returned when the request is applied.
    let apply = |(request, _permit): (v1::IngestRequest, OwnedSemaphorePermit)| {
        cell.counters.add(Count::IngestRequests);
        let records = request.records.iter();
        let records = records.map(|record| (record.as_slice(), now_ms));
        let applied = cell.apply(records, "grpc", now_ms);
        v1::IngestResponse {
            accepted: applied.accepted,
            rejected: applied.rejected,
            first_rejection: applied.first_rejection.unwrap_or_default(),
            positions: cell.positions(&applied.workers),
        }
    };
    requests
        .into_iter()
        .map(|request| request.map(apply))
        .collect()
}
