//! `Dump`: a state of one moment, streamed at the reader's pace.
//!
//! A dump needs eight bytes per block until that block is sent. So only a few run at a time, and a dump whose reader
//! takes nothing for a while ends.

use std::sync::Arc;
use std::time::Duration;

use kvatlas_wire::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::Status;

use super::blocking::run_blocking;
use super::stop::{Stop, stopped, stopping};
use crate::cell::Cell;
use crate::messages::worker_key;
use crate::state::dump::{Dump, DumpOptions, DumpStream};

/// Dumps that run at a time.
const DUMPS_MAX: usize = 2;
/// Time for the reader to take one slice.
const SLICE_TIMEOUT: Duration = Duration::from_secs(30);

type Slices = mpsc::Sender<Result<v1::DumpResponse, Status>>;

/// Permits to run a dump. All threads of the server share them.
#[derive(Clone)]
pub struct Slots(Arc<Semaphore>);

impl Default for Slots {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(DUMPS_MAX)))
    }
}

impl Slots {
    /// Takes a permit, if one is left. Dropping it returns it.
    pub fn take(&self) -> Result<OwnedSemaphorePermit, Status> {
        let permit = Arc::clone(&self.0).try_acquire_owned();
        permit.map_err(|_| {
            Status::resource_exhausted(format!("{DUMPS_MAX} dumps are running; ask again later"))
        })
    }
}

/// The options of a request.
pub fn options(request: &v1::DumpRequest) -> Result<DumpOptions, Status> {
    if request.digests && request.resumable {
        return Err(Status::invalid_argument(
            "digests and resumable exclude one another: a replica starts from whole sets",
        ));
    }
    Ok(DumpOptions {
        workers: request.workers.iter().copied().map(worker_key).collect(),
        digests: request.digests,
        resumable: request.resumable,
    })
}

/// Dumps the cell and sends all slices.
pub async fn send(
    cell: Arc<Cell>,
    options: DumpOptions,
    permit: OwnedSemaphorePermit,
    slices: Slices,
    mut stop: Stop,
) {
    let permit = Arc::new(permit);
    let failure = tokio::select! {
        result = send_slices(cell, options, &slices, &permit) => result.err(),
        () = slices.closed() => None,
        _ = stopped(&mut stop) => Some(stopping()),
    };
    drop(permit);
    if let Some(status) = failure {
        // Waits for a slow reader: without the status, the state would seem complete.
        let _ = slices.send(Err(status)).await;
    }
}

/// Sends all slices, or returns the status that ends the dump early.
async fn send_slices(
    cell: Arc<Cell>,
    options: DumpOptions,
    slices: &Slices,
    permit: &Arc<OwnedSemaphorePermit>,
) -> Result<(), Status> {
    // The pass over the index runs to its end, even if nobody waits for it any more. Until then it holds the permit.
    let held = Arc::clone(permit);
    let begin = run_blocking(move || {
        let stream = DumpStream::new(Dump::new(&cell, &options)).map_err(encoding_error);
        drop(held);
        stream
    });
    let mut stream = begin.await??;
    loop {
        let next = run_blocking(move || {
            let slice = stream.next();
            (slice, stream)
        });
        let (slice, rest) = next.await?;
        let Some(slice) = slice else { return Ok(()) };
        stream = rest;
        let message = slice
            .map(|arrow_ipc| v1::DumpResponse { arrow_ipc })
            .map_err(encoding_error);
        match tokio::time::timeout(SLICE_TIMEOUT, slices.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Ok(()), // a reader that has gone needs no status
            Err(_) => return Err(Status::deadline_exceeded("nothing was read for too long")),
        }
    }
}

fn encoding_error(error: std::io::Error) -> Status {
    Status::internal(format!("the dump cannot be encoded: {error}"))
}

#[cfg(test)]
mod tests {
    use kvatlas_events::sequencer::Limits;
    use kvatlas_wire::frame;
    use prost::Message as _;
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::watch;

    use super::*;
    use crate::config::CellConfig;

    /// A cell with one worker, whose dump has two slices.
    fn cell() -> Arc<Cell> {
        let cell = Cell::new(CellConfig {
            cell: String::new(),
            model: String::new(),
            block_size: 16,
            hash_contract: String::new(),
            replica_id: String::new(),
            version: String::new(),
            lease_ms: 1,
            limits: Limits {
                hold_back_batches: 1,
                hold_back_ms: 1,
                recover_ms: 1,
                snapshot_parts: 1,
                snapshot_hashes: 1,
            },
            memory_bytes_max: 1 << 20,
        });
        let header = v1::Header {
            worker: Some(v1::Worker::default()),
            epoch: 1,
            block_size: 16,
            ..Default::default()
        };
        let batch = v1::Batch {
            header: Some(header),
            heartbeat: Some(v1::Heartbeat::default()),
            ..Default::default()
        };
        let record = frame::seal(&batch.encode_to_vec());
        assert_eq!(cell.apply([(record.as_slice(), 1)], "grpc", 1).accepted, 1);
        Arc::new(cell)
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_slow_reader_learns_that_a_dump_was_cut_short_after_the_slices_it_has_not_read() {
        let (slices, mut reader) = mpsc::channel(1);
        let (stop, stopping) = watch::channel(None);
        let permit = Slots::default().take().unwrap();
        runtime().block_on(async {
            tokio::spawn(send(
                cell(),
                DumpOptions::default(),
                permit,
                slices,
                stopping,
            ));
            while reader.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            stop.send_replace(Some(Duration::ZERO));
            tokio::task::yield_now().await;
            assert!(reader.recv().await.is_some_and(|slice| slice.is_ok()));
            let end = reader.recv().await.and_then(Result::err);
            assert_eq!(
                end.map(|status| status.code()),
                Some(tonic::Code::Unavailable)
            );
            assert!(reader.recv().await.is_none());
        });
    }

    #[test]
    fn a_dump_whose_reader_has_gone_keeps_its_permit_until_its_pass_over_the_index_is_over() {
        let (cell, slots) = (cell(), Slots::default());
        let runtime = runtime();
        let (slices, reader) = mpsc::channel(2);
        let (_stop, stopping) = watch::channel(None);
        let permit = slots.take().unwrap();
        let sending = send(
            Arc::clone(&cell),
            DumpOptions::default(),
            permit,
            slices,
            stopping,
        );
        cell.with_table(|_| {
            // The pass waits for the table, which this test holds.
            runtime.block_on(async {
                let sending = tokio::spawn(sending);
                tokio::task::yield_now().await;
                drop(reader);
                sending.await.unwrap();
            });
            assert_eq!(slots.0.available_permits(), DUMPS_MAX - 1);
        });
        drop(runtime); // waits for the pass
        assert_eq!(slots.0.available_permits(), DUMPS_MAX);
    }
}
