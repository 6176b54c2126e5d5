//! The calls that are not hot: `WatchWorkers`, `Ingest`, `GetStatus`, `Dump`.
//!
//! Whatever takes the worker table's lock runs on the runtime's blocking threads, so that applying
//! a large batch never keeps a look-up waiting behind it on the same thread. Streams hold at most a
//! few messages: a slow watcher gets what has changed since its last message, in one.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kvatlas_wire::v1;
use kvatlas_wire::v1::indexer_server::Indexer;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::find_matches::check_terms;
use super::ingest::ingest;
use super::{Clock, Stopping, dump};
use crate::cell::Cell;
use crate::counters::Count;

/// Changes within this time go out as one message.
const COALESCE: Duration = Duration::from_millis(20);

/// The generated trait's implementation.
pub struct Rpc {
    /// What it speaks for.
    pub cell: Arc<Cell>,
    /// Wall clock in ms.
    pub clock: Clock,
    /// Set when the server stops.
    pub stopping: watch::Receiver<Stopping>,
    /// How many dumps run.
    pub dumps: dump::Running,
}

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Indexer for Rpc {
    type WatchWorkersStream = Boxed<v1::WatchWorkersResponse>;
    type IngestStream = Boxed<v1::IngestResponse>;
    type DumpStream = Boxed<v1::DumpResponse>;

    async fn find_matches(
        &self,
        _: Request<v1::FindMatchesRequest>,
    ) -> Result<Response<v1::FindMatchesResponse>, Status> {
        Err(Status::internal(
            "FindMatches is answered by the service in front",
        ))
    }

    async fn watch_workers(
        &self,
        request: Request<v1::WatchWorkersRequest>,
    ) -> Result<Response<Self::WatchWorkersStream>, Status> {
        let terms = request.into_inner();
        check_terms(
            &self.cell,
            &terms.model,
            terms.block_size,
            &terms.hash_contract,
        )?;
        self.cell.counters.add(Count::WatchesOpened);
        let (messages, stream) = mpsc::channel(1);
        tokio::spawn(watch_workers(
            Arc::clone(&self.cell),
            messages,
            self.stopping.clone(),
        ));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn ingest(
        &self,
        request: Request<Streaming<v1::IngestRequest>>,
    ) -> Result<Response<Self::IngestStream>, Status> {
        let (answers, stream) = mpsc::channel(4);
        let cell = Arc::clone(&self.cell);
        let stopping = self.stopping.clone();
        tokio::spawn(ingest(
            cell,
            self.clock,
            request.into_inner(),
            answers,
            stopping,
        ));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn dump(
        &self,
        request: Request<v1::DumpRequest>,
    ) -> Result<Response<Self::DumpStream>, Status> {
        let options = dump::options(&request.into_inner())?;
        let turn = self.dumps.turn()?;
        let (slices, stream) = mpsc::channel(2);
        let cell = Arc::clone(&self.cell);
        let sending = dump::send(cell, options, turn, slices, self.stopping.clone());
        tokio::spawn(sending);
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let cell = Arc::clone(&self.cell);
        off_thread(move || cell.status()).await.map(Response::new)
    }
}

pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Status::internal("the indexer failed while it answered"))
}

async fn watch_workers(
    cell: Arc<Cell>,
    messages: mpsc::Sender<Result<v1::WatchWorkersResponse, Status>>,
    mut stopping: watch::Receiver<Stopping>,
) {
    let mut versions = cell.watch_versions();
    let mut since = None;
    loop {
        versions.mark_unchanged();
        let reader = Arc::clone(&cell);
        let Ok((version, mut message)) = off_thread(move || reader.changes(since)).await else {
            return;
        };
        if since.is_none() {
            introduce(&cell, &mut message);
        }
        since = Some(version);
        if message.full {
            cell.counters.add(Count::WatchFulls);
        }
        let says_something =
            message.full || !message.workers.is_empty() || !message.removed.is_empty();
        if says_something && messages.send(Ok(message)).await.is_err() {
            return;
        }
        tokio::select! {
            () = messages.closed() => return,
            _ = stopping.wait_for(Option::is_some) => {
                // A full queue means that the watcher reads nothing: then the closed stream tells it.
                let _ = messages.try_send(Err(Status::unavailable("this replica is stopping")));
                return;
            }
            changed = versions.changed() => if changed.is_err() { return },
        }
        tokio::time::sleep(COALESCE).await;
    }
}

/// The first message says what the cell speaks.
fn introduce(cell: &Cell, message: &mut v1::WatchWorkersResponse) {
    message.cell.clone_from(&cell.config.cell);
    message.model.clone_from(&cell.config.model);
    message.block_size = cell.config.block_size;
    message.hash_contract.clone_from(&cell.config.hash_contract);
}
