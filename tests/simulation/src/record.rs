//! The records of a life, encoded as publishers encode them.

use kvatlas_mirror::{Kind, Mirror, Operation, TIERS, TierDigest};
use kvatlas_wire::{frame, v1};
use prost::Message as _;

use crate::log::Record;

/// The cell's terms.
pub const CELL: &str = "simulated";
/// The cell's model.
pub const MODEL: &str = "model";
/// Tokens per block.
pub const BLOCK_SIZE: u32 = 16;
const RPC: &str = "publisher-";

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speaker {
    /// The worker's id.
    pub worker: u64,
    /// Of this life.
    pub epoch: u64,
    /// Of this process.
    pub instance: u64,
    /// Where this process answers: its number among the publishers.
    pub name: usize,
}

impl Speaker {
    /// A batch of this speaker, with nothing in it.
    #[must_use]
    pub fn batch(self) -> v1::Batch {
        let header = v1::Header {
            worker: Some(v1::Worker {
                worker_id: self.worker,
                dp_rank: 0,
            }),
            epoch: self.epoch,
            instance_id: self.instance,
            cell: CELL.to_owned(),
            model: MODEL.to_owned(),
            block_size: BLOCK_SIZE,
            hash_contract: kvatlas_hashing::CONTRACT.to_owned(),
            publisher: String::new(),
        };
        v1::Batch {
            header: Some(header),
            ..v1::Batch::default()
        }
    }

    /// Numbered events: operations of the mirror, each with its hashes.
    #[must_use]
    pub fn events(self, first: u64, said: &[(Operation, &[u64])]) -> Record {
        let events = said
            .iter()
            .map(|&(operation, hashes)| event(operation, hashes));
        seal(&v1::Batch {
            first_event_id: first,
            events: events.collect(),
            ..self.batch()
        })
    }

    /// The last event.
    #[must_use]
    pub fn shutdown(self, event_id: u64, reason: v1::shutdown::Reason) -> Record {
        let kind = v1::event::Kind::Shutdown(v1::Shutdown {
            reason: reason.into(),
        });
        seal(&v1::Batch {
            first_event_id: event_id,
            events: vec![v1::Event { kind: Some(kind) }],
            ..self.batch()
        })
    }

    /// The whole set, in parts of at most so many hashes.
    #[must_use]
    pub fn snapshot(self, as_of: u64, mirror: &Mirror, part_hashes: usize) -> Vec<Record> {
        let mut cuts: Vec<(usize, Vec<u64>)> = Vec::new();
        for (place, tier) in TIERS.into_iter().enumerate() {
            let mut hashes = mirror.snapshot(tier);
            hashes.sort_unstable();
            cuts.extend(hashes.chunks(part_hashes).map(|cut| (place, cut.to_vec())));
        }
        let held = digests(mirror.digests());
        let held: Vec<_> = held.into_iter().filter(|tier| tier.blocks > 0).collect();
        if cuts.is_empty() {
            cuts.push((0, Vec::new()));
        }
        let parts = cuts.len() as u32;
        let part = |(part, (tier, sequence_hashes)): (u32, (usize, Vec<u64>))| {
            let snapshot = v1::Snapshot {
                as_of_event_id: as_of,
                part,
                parts,
                tier: number(tier),
                sequence_hashes,
                digests: held.clone(),
            };
            seal(&v1::Batch {
                snapshot: Some(snapshot),
                ..self.batch()
            })
        };
        (0..parts).zip(cuts).map(part).collect()
    }

    /// The publisher lives.
    #[must_use]
    pub fn heartbeat(self, last_event_id: u64, mirror: &Mirror) -> Record {
        let heartbeat = v1::Heartbeat {
            last_event_id,
            digests: digests(mirror.digests()),
            publisher_rpc: format!("{RPC}{}", self.name),
            ..v1::Heartbeat::default()
        };
        seal(&v1::Batch {
            heartbeat: Some(heartbeat),
            ..self.batch()
        })
    }
}

/// Which publisher answers at this address.
#[must_use]
pub fn publisher_at(rpc: &str) -> Option<usize> {
    rpc.strip_prefix(RPC)?.parse().ok()
}

/// As heartbeats name them: the device's always, so that an emptied cache says that it is empty, and
/// those of other tiers that hold anything.
#[must_use]
pub fn digests(published: [TierDigest; TIERS.len()]) -> Vec<v1::TierDigest> {
    let named = published.iter().enumerate();
    named
        .filter(|&(place, digest)| place == 0 || digest.blocks > 0)
        .map(|(place, digest)| v1::TierDigest {
            tier: number(place),
            blocks: digest.blocks,
            digest: digest.digest,
        })
        .collect()
}

/// How far a receiver is that has applied everything up to this record: of its worker, the epoch and
/// the last event. `None` for a snapshot's part that is not its last, and for what is no record.
#[must_use]
pub fn progress(record: &[u8]) -> Option<(u64, u64)> {
    let batch = v1::Batch::decode(frame::open(record).ok()?).ok()?;
    let last = match (&batch.snapshot, &batch.heartbeat) {
        (Some(snapshot), _) if snapshot.part + 1 < snapshot.parts => return None,
        (Some(snapshot), _) => snapshot.as_of_event_id,
        (None, Some(heartbeat)) => heartbeat.last_event_id,
        (None, None) => batch.first_event_id + batch.events.len() as u64 - 1,
    };
    Some((batch.header?.epoch, last))
}

/// A batch, sealed.
#[must_use]
pub fn seal(batch: &v1::Batch) -> Record {
    frame::seal(&batch.encode_to_vec()).into()
}

fn number(tier: usize) -> i32 {
    tier as i32 + 1
}

fn event(operation: Operation, hashes: &[u64]) -> v1::Event {
    let tier = operation.tier.map(|tier| number(tier as usize));
    let sequence_hashes = hashes.to_vec();
    let kind = match operation.kind {
        Kind::Store(parent) => v1::event::Kind::Store(v1::Store {
            parent_sequence_hash: parent,
            sequence_hashes,
            tier: tier.unwrap_or_default(),
        }),
        Kind::Remove => v1::event::Kind::Remove(v1::Remove {
            sequence_hashes,
            tier: tier.unwrap_or_default(),
        }),
        Kind::Clear => v1::event::Kind::Clear(v1::Clear { tier }),
    };
    v1::Event { kind: Some(kind) }
}
