//! `Dump`: a state, taken at one moment, streamed at the reader's pace.
//!
//! Its memory is eight bytes a block until that block is sent, so only a few run at a time, and one whose reader
//! takes nothing for a while is given up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::time::Duration;

use kvatlas_index::WorkerKey;
use kvatlas_wire::v1;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use super::Stopping;
use super::rpc::off_thread;
use crate::cell::Cell;
use crate::dump::{DumpOptions, DumpStream};

/// Dumps that run at a time.
const DUMPS_MAX: usize = 2;
/// For the reader to take one slice.
const READER_PATIENCE: Duration = Duration::from_secs(30);

type Slices = mpsc::Sender<Result<v1::DumpResponse, Status>>;

/// How many dumps run. Shared by the server's threads.
#[derive(Clone, Default)]
pub struct Running(Arc<AtomicUsize>);

/// The right to run one; given back when dropped.
pub struct Turn(Arc<AtomicUsize>);

impl Running {
    /// A right to run, if there is one left.
    pub fn turn(&self) -> Result<Turn, Status> {
        let turn = Turn(Arc::clone(&self.0));
        if self.0.fetch_add(1, AcqRel) < DUMPS_MAX {
            Ok(turn)
        } else {
            let text = format!("{DUMPS_MAX} dumps are running; ask again later");
            Err(Status::resource_exhausted(text))
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

/// What the request asks for.
pub fn options(request: &v1::DumpRequest) -> Result<DumpOptions, Status> {
    if request.digests && request.resumable {
        return Err(Status::invalid_argument(
            "digests and resumable exclude one another: a replica starts from whole sets",
        ));
    }
    let named = request.workers.iter().map(|worker| WorkerKey {
        worker_id: worker.worker_id,
        dp_rank: worker.dp_rank,
    });
    Ok(DumpOptions {
        workers: named.collect::<BTreeSet<_>>(),
        digests: request.digests,
        resumable: request.resumable,
    })
}

/// Take the state and send it.
pub async fn send(
    cell: Arc<Cell>,
    options: DumpOptions,
    turn: Turn,
    slices: Slices,
    mut stopping: watch::Receiver<Stopping>,
) {
    let stopped = stopping.wait_for(Option::is_some);
    tokio::select! {
        () = stream(cell, options, &slices) => {}
        () = slices.closed() => {}
        _ = stopped => {
            // A reader that takes nothing sees the stream end early.
            let _ = slices.try_send(Err(Status::unavailable("this replica is stopping")));
        }
    }
    drop(turn);
}

async fn stream(cell: Arc<Cell>, options: DumpOptions, slices: &Slices) {
    let mut source = off_thread(move || DumpStream::new(cell.dump(&options)).map_err(broken)).await;
    loop {
        let slice = match source {
            Ok(Ok(mut stream)) => {
                off_thread(move || {
                    let slice = stream.next();
                    (slice, stream)
                })
                .await
            }
            Ok(Err(status)) | Err(status) => Err(status),
        };
        let message = match slice {
            Ok((Some(slice), stream)) => {
                source = Ok(Ok(stream));
                slice
                    .map(|arrow_ipc| v1::DumpResponse { arrow_ipc })
                    .map_err(broken)
            }
            Ok((None, _)) => return,
            Err(status) => {
                // A reader that has gone needs no reason.
                let _ = slices.send(Err(status)).await;
                return;
            }
        };
        let taken = tokio::time::timeout(READER_PATIENCE, slices.send(message)).await;
        if !matches!(taken, Ok(Ok(()))) {
            return;
        }
    }
}

fn broken(error: std::io::Error) -> Status {
    Status::internal(format!("the dump cannot be encoded: {error}"))
}
