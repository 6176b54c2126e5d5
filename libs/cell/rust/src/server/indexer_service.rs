//! The generated `Indexer` service: all calls but `FindMatches`.
//!
//! Calls that take the worker table's lock run on the runtime's blocking threads. Then a large batch that is being
//! applied never keeps a look-up waiting on the same thread. Streams hold at most a few messages.

use std::pin::Pin;
use std::sync::Arc;

use kvatlas_wire::v1;
use kvatlas_wire::v1::indexer_server::Indexer;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::blocking::run_blocking;
use super::find_matches::check_terms;
use super::stop::Stop;
use super::{dump, ingest, watch_workers};
use crate::cell::Cell;
use crate::counters::Count;

/// The generated trait's implementation.
pub struct IndexerService {
    pub cell: Arc<Cell>,
    pub clock: ingest::Clock,
    pub stop: Stop,
    pub dumps: dump::Slots,
}

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn boxed<T: Send + 'static>(
    messages: mpsc::Receiver<Result<T, Status>>,
) -> Result<Response<Boxed<T>>, Status> {
    Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
}

#[tonic::async_trait]
impl Indexer for IndexerService {
    type WatchWorkersStream = Boxed<v1::WatchWorkersResponse>;
    type IngestStream = Boxed<v1::IngestResponse>;
    type DumpStream = Boxed<v1::DumpResponse>;

    async fn find_matches(
        &self,
        _: Request<v1::FindMatchesRequest>,
    ) -> Result<Response<v1::FindMatchesResponse>, Status> {
        Err(Status::internal("FindMatches is answered by the router"))
    }

    async fn watch_workers(
        &self,
        request: Request<v1::WatchWorkersRequest>,
    ) -> Result<Response<Self::WatchWorkersStream>, Status> {
        let v1::WatchWorkersRequest {
            model,
            block_size,
            hash_contract,
        } = request.into_inner();
        check_terms(&self.cell, &model, block_size, &hash_contract)?;
        self.cell.counters.add(Count::WatchesOpened);
        let (messages, stream) = mpsc::channel(1);
        let cell = Arc::clone(&self.cell);
        tokio::spawn(watch_workers::send(cell, messages, self.stop.clone()));
        boxed(stream)
    }

    async fn ingest(
        &self,
        request: Request<Streaming<v1::IngestRequest>>,
    ) -> Result<Response<Self::IngestStream>, Status> {
        let (answers, stream) = mpsc::channel(4);
        let (cell, stop) = (Arc::clone(&self.cell), self.stop.clone());
        let requests = request.into_inner();
        tokio::spawn(ingest::serve(cell, self.clock, requests, answers, stop));
        boxed(stream)
    }

    async fn dump(
        &self,
        request: Request<v1::DumpRequest>,
    ) -> Result<Response<Self::DumpStream>, Status> {
        let options = dump::options(&request.into_inner())?;
        let permit = self.dumps.take()?;
        let (slices, stream) = mpsc::channel(2);
        let (cell, stop) = (Arc::clone(&self.cell), self.stop.clone());
        tokio::spawn(dump::send(cell, options, permit, slices, stop));
        boxed(stream)
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let cell = Arc::clone(&self.cell);
        run_blocking(move || cell.status()).await.map(Response::new)
    }
}
