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
    let turn = Arc::new(turn);
    let early = tokio::select! {
        early = stream(cell, options, &slices, &turn) => early,
        () = slices.closed() => None,
        _ = stopped => Some(Status::unavailable("this replica is stopping")),
    };
    drop(turn);
    if let Some(status) = early {
        // However long the reader takes for what is before it: an end without a word is that of a whole state.
        let _ = slices.send(Err(status)).await;
    }
}

/// Send all of it; why that ended early, if it did.
async fn stream(
    cell: Arc<Cell>,
    options: DumpOptions,
    slices: &Slices,
    turn: &Arc<Turn>,
) -> Option<Status> {
    // The pass over the index ends when it is through, also when nobody waits for it any more.
    let held = Arc::clone(turn);
    let begun = off_thread(move || {
        let stream = DumpStream::new(cell.dump(&options)).map_err(broken);
        drop(held);
        stream
    });
    let mut source = begun.await;
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
            Ok((None, _)) => return None,
            Err(status) => return Some(status),
        };
        match tokio::time::timeout(READER_PATIENCE, slices.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return None, // a reader that has gone needs no reason
            Err(_) => return Some(Status::deadline_exceeded("nothing was read for too long")),
        }
    }
}

fn broken(error: std::io::Error) -> Status {
    Status::internal(format!("the dump cannot be encoded: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Acquire;

    use kvatlas_events::sequencer::Limits;
    use kvatlas_wire::frame;
    use prost::Message as _;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::cell::CellConfig;

    /// With one worker, so that a dump of it has two slices.
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
    fn a_slow_reader_is_told_that_a_dump_was_cut_short_after_what_it_had_not_read() {
        let (slices, mut reader) = mpsc::channel(1);
        let (stop, stopping) = watch::channel(None);
        let turn = Running::default().turn().unwrap();
        runtime().block_on(async {
            tokio::spawn(send(cell(), DumpOptions::default(), turn, slices, stopping));
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
    fn a_dump_whose_reader_has_gone_keeps_its_turn_until_its_pass_over_the_index_is_over() {
        let (cell, running) = (cell(), Running::default());
        let runtime = runtime();
        let (slices, reader) = mpsc::channel(2);
        let (_stop, stopping) = watch::channel(None);
        let turn = running.turn().unwrap();
        let sending = send(
            Arc::clone(&cell),
            DumpOptions::default(),
            turn,
            slices,
            stopping,
        );
        cell.with_table(|_| {
            // The pass waits for the table, which is ours.
            runtime.block_on(async {
                let sending = tokio::spawn(sending);
                tokio::task::yield_now().await;
                drop(reader);
                sending.await.unwrap();
            });
            assert_eq!(running.0.load(Acquire), 1);
        });
        drop(runtime); // waits for the pass
        assert_eq!(running.0.load(Acquire), 0);
    }
}
