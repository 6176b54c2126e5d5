//! Fills an indexer through `Ingest`, as publishers do, and keeps its leases running.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_wire::v1::indexer_client::IndexerClient;
use kvatlas_wire::v1::{
    Batch, Event, Header, Heartbeat, IngestRequest, Store, Tier, Worker, event,
};
use kvatlas_wire::{frame, v1};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::args::Failure;
use crate::flags::Flags;
use crate::fleet::Fleet;

/// Most requests without an answer.
const WINDOW: usize = 8;
/// Conversations in one record.
const CONVERSATIONS_A_RECORD: u64 = 16;
const HEARTBEAT: Duration = Duration::from_secs(1);

/// An open `Ingest` stream whose workers are filled.
pub struct Filled {
    requests: mpsc::Sender<IngestRequest>,
    answers: Streaming<v1::IngestResponse>,
    /// Each worker's header, and its last event id.
    headers: Vec<(Header, u64)>,
}

/// Stores the whole fleet; returns when all of it is acknowledged.
///
/// # Errors
/// The indexer cannot be reached, refuses a record, or needs a snapshot.
pub async fn fill(flags: &Flags, fleet: &Fleet) -> Result<Filled, Failure> {
    let channel = Channel::from_shared(format!("http://{}", flags.address))?
        .connect()
        .await?;
    let (requests, stream) = mpsc::channel(WINDOW);
    let answers = IndexerClient::new(channel)
        .ingest(ReceiverStream::new(stream))
        .await?;
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let mut filled = Filled {
        requests,
        answers: answers.into_inner(),
        headers: Vec::new(),
    };
    let mut waiting = 0;
    for worker_id in 0..flags.workers {
        let header = Header {
            worker: Some(Worker {
                worker_id,
                dp_rank: 0,
            }),
            epoch: u64::try_from(epoch)?,
            instance_id: flags.seed,
            cell: flags.cell.clone(),
            model: flags.model.clone(),
            block_size: flags.block_size,
            hash_contract: flags.hash_contract.clone(),
            publisher: "kvatlas-loadgen".to_owned(),
        };
        for first in (0..fleet.conversations).step_by(CONVERSATIONS_A_RECORD as usize) {
            let last = (first + CONVERSATIONS_A_RECORD).min(fleet.conversations);
            let events = (first..last).map(|number| store(fleet.sequence(worker_id, number)));
            let batch = Batch {
                header: Some(header.clone()),
                first_event_id: first + 1,
                events: events.collect(),
                ..Default::default()
            };
            filled.send(vec![batch]).await?;
            waiting += 1;
            if waiting == WINDOW {
                filled.acknowledge().await?;
                waiting -= 1;
            }
        }
        filled.headers.push((header, fleet.conversations));
    }
    for _ in 0..waiting {
        filled.acknowledge().await?;
    }
    Ok(filled)
}

impl Filled {
    /// Sends heartbeats until an error.
    ///
    /// # Errors
    /// As [`fill`].
    pub async fn hold(mut self) -> Result<(), Failure> {
        loop {
            let beats = self.headers.iter().map(|(header, last_event_id)| Batch {
                header: Some(header.clone()),
                heartbeat: Some(Heartbeat {
                    last_event_id: *last_event_id,
                    ..Default::default()
                }),
                ..Default::default()
            });
            let beats = beats.collect();
            self.send(beats).await?;
            self.acknowledge().await?;
            tokio::time::sleep(HEARTBEAT).await;
        }
    }

    async fn send(&mut self, batches: Vec<Batch>) -> Result<(), Failure> {
        let records = batches
            .iter()
            .map(|batch| frame::seal(&batch.encode_to_vec()));
        let request = IngestRequest {
            records: records.collect(),
        };
        self.requests
            .send(request)
            .await
            .map_err(|_| "the indexer ended the stream".into())
    }

    async fn acknowledge(&mut self) -> Result<(), Failure> {
        let answer = self
            .answers
            .message()
            .await?
            .ok_or("the indexer ended the stream")?;
        if answer.rejected > 0 {
            return Err(format!("the indexer refused a record: {}", answer.first_rejection).into());
        }
        match answer.positions.iter().find(|position| !position.whole) {
            Some(position) => Err(format!("the indexer wants a snapshot: {position:?}").into()),
            None => Ok(()),
        }
    }
}

fn store(sequence_hashes: Vec<u64>) -> Event {
    let store = Store {
        parent_sequence_hash: None,
        sequence_hashes,
        tier: Tier::Device.into(),
    };
    Event {
        kind: Some(event::Kind::Store(store)),
    }
}
