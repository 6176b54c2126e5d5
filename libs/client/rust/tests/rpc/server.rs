//! A real tonic server that does as it is told, for the calls' tests.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvatlas_client::{Code, Status};
use kvatlas_wire::v1::indexer_server::{Indexer, IndexerServer};
use kvatlas_wire::v1::{
    DumpRequest, DumpResponse, FindMatchesRequest, FindMatchesResponse, GetStatusRequest,
    GetStatusResponse, IngestRequest, IngestResponse, WatchWorkersRequest, WatchWorkersResponse,
    Worker, WorkerPosition,
};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Streaming};

/// How long the server takes over a request that is "slow".
pub const SLOW: Duration = Duration::from_millis(60);

type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

/// How a server answers `FindMatches`.
#[derive(Clone, Copy, Debug)]
pub enum Script {
    /// With the query itself in columns: hashes, limit, block size.
    Echo,
    /// With a million workers.
    Wide,
    /// Never.
    Hang,
    /// With this status.
    Fail(Code, &'static str),
}

struct Scripted {
    script: Arc<Mutex<Script>>,
    queries: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Indexer for Scripted {
    async fn find_matches(
        &self,
        request: Request<FindMatchesRequest>,
    ) -> Result<Response<FindMatchesResponse>, Status> {
        assert!(request.metadata().contains_key("grpc-timeout"));
        self.queries.fetch_add(1, Ordering::Relaxed);
        let query = request.into_inner();
        let script = *self.script.lock().unwrap();
        match script {
            Script::Fail(code, message) => Err(Status::new(code, message)),
            Script::Hang => std::future::pending().await,
            Script::Wide => Ok(Response::new(FindMatchesResponse {
                worker_ids: (0..1_000_000).collect(),
                dp_ranks: vec![1; 1_000_000],
                depths: vec![2; 1_000_000],
            })),
            Script::Echo => {
                let hashes = [query.chunk_hashes, query.sequence_hashes].concat();
                let count = hashes.len();
                Ok(Response::new(FindMatchesResponse {
                    worker_ids: hashes,
                    dp_ranks: vec![query.limit; count],
                    depths: vec![query.block_size; count],
                }))
            }
        }
    }

    type WatchWorkersStream = Stream<WatchWorkersResponse>;
    async fn watch_workers(
        &self,
        _: Request<WatchWorkersRequest>,
    ) -> Result<Response<Self::WatchWorkersStream>, Status> {
        Err(Status::unimplemented(""))
    }

    type IngestStream = Stream<IngestResponse>;
    async fn ingest(
        &self,
        request: Request<Streaming<IngestRequest>>,
    ) -> Result<Response<Self::IngestStream>, Status> {
        let mut requests = request.into_inner();
        let (answers, answered) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let answer = answer(request).await;
                let is_last = !matches!(answer, Ok(Some(_)));
                if let Some(answer) = answer.transpose() {
                    // A caller that is gone wants no answer.
                    let _gone = answers.send(answer).await;
                }
                if is_last {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answered))))
    }

    type DumpStream = Stream<DumpResponse>;
    async fn dump(&self, _: Request<DumpRequest>) -> Result<Response<Self::DumpStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// Answers by the request's first record: "end" ends the call, "fail" with an error, "hang" never,
/// what begins with "slow" after a while; else every record is a worker whose id is its length, repeated a hundred thousand times for "wide".
async fn answer(request: IngestRequest) -> Result<Option<IngestResponse>, Status> {
    let lens = request.records.iter().map(|record| record.len() as u64);
    let repeated = match request.records.first().map(Vec::as_slice) {
        Some(b"end") => return Ok(None),
        Some(b"fail") => return Err(Status::failed_precondition("another cell")),
        Some(b"hang") => std::future::pending().await,
        Some(b"wide") => 100_000,
        Some([b's', b'l', b'o', b'w', ..]) => {
            tokio::time::sleep(SLOW).await;
            1
        }
        _ => 1,
    };
    let positions = lens.map(|worker_id| WorkerPosition {
        worker: Some(Worker {
            worker_id,
            dp_rank: 0,
        }),
        ..WorkerPosition::default()
    });
    let positions = positions.flat_map(|position| std::iter::repeat_n(position, repeated));
    Ok(Some(IngestResponse {
        accepted: request.records.len() as u64,
        positions: positions.collect(),
        ..IngestResponse::default()
    }))
}

/// A server on a thread of its own runtime; dropping it closes its connections at once.
pub struct Running {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
    script: Arc<Mutex<Script>>,
    queries: Arc<AtomicUsize>,
}

impl Running {
    pub fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap())
    }

    pub fn start_at(address: SocketAddr) -> Self {
        let script = Arc::new(Mutex::new(Script::Echo));
        let queries = Arc::default();
        let scripted = Scripted {
            script: Arc::clone(&script),
            queries: Arc::clone(&queries),
        };
        let runtime = Runtime::new().unwrap();
        let (bound, ready) = oneshot::channel();
        runtime.spawn(async move {
            let listener = TcpListener::bind(address).await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            Server::builder()
                .add_service(IndexerServer::new(scripted))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
        });
        let address = runtime.block_on(ready).unwrap();
        Self {
            address,
            runtime: Some(runtime),
            script,
            queries,
        }
    }

    /// Changes the answers to further queries.
    pub fn script(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    /// Number of `FindMatches` queries so far.
    pub fn queries(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}
