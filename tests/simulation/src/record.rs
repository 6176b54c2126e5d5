//! Encodes a publisher's records, with the generated code.

use kvatlas_engines::Tier;
use kvatlas_mirror::{EventKind, Mirror, PendingEvent, TierDigest};
use kvatlas_wire::{frame, v1};
use prost::Message as _;

use crate::log::Record;

/// The cell's name.
pub const CELL: &str = "simulated";
/// The cell's model.
pub const MODEL: &str = "model";
/// Tokens per block.
pub const BLOCK_SIZE: u32 = 16;
const RPC: &str = "publisher-";

/// Encodes the records of one epoch of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordEncoder {
    /// The worker's id.
    pub worker: u64,
    /// The epoch.
    pub epoch: u64,
    /// Number of the publisher process.
    pub instance: u64,
    /// Number of the publisher, from which its address is made.
    pub name: usize,
}

impl RecordEncoder {
    /// An empty batch.
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

    /// A record of numbered events: the mirror's pending events, each with its hashes.
    #[must_use]
    pub fn events(self, first: u64, pending: &[(PendingEvent, &[u64])]) -> Record {
        let events = pending
            .iter()
            .map(|&(operation, hashes)| event(operation, hashes));
        seal(&v1::Batch {
            first_event_id: first,
            events: events.collect(),
            ..self.batch()
        })
    }

    /// A record of the last event.
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

    /// Records of the whole set, in parts of at most `part_hashes` hashes.
    #[must_use]
    pub fn snapshot(self, as_of: u64, mirror: &Mirror, part_hashes: usize) -> Vec<Record> {
        let mut cuts: Vec<(usize, Vec<u64>)> = Vec::new();
        for (place, tier) in Tier::ALL.into_iter().enumerate() {
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

    /// A heartbeat.
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

/// The number of the publisher with this address.
#[must_use]
pub fn publisher_at(rpc: &str) -> Option<usize> {
    rpc.strip_prefix(RPC)?.parse().ok()
}

/// Digests as heartbeats carry them: always the device's, so that an emptied cache is reported, and those of other tiers
/// that hold blocks.
#[must_use]
pub fn digests(published: [TierDigest; Tier::COUNT]) -> Vec<v1::TierDigest> {
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

/// Epoch and event id of a receiver that has applied everything up to this record. None for a snapshot's part that is not
/// its last, and for other bytes.
#[must_use]
pub fn last_event(record: &[u8]) -> Option<(u64, u64)> {
    let batch = v1::Batch::decode(frame::open(record).ok()?).ok()?;
    let last = match (&batch.snapshot, &batch.heartbeat) {
        (Some(snapshot), _) if snapshot.part + 1 < snapshot.parts => return None,
        (Some(snapshot), _) => snapshot.as_of_event_id,
        (None, Some(heartbeat)) => heartbeat.last_event_id,
        (None, None) => batch.first_event_id + batch.events.len() as u64 - 1,
    };
    Some((batch.header?.epoch, last))
}

/// Seals a batch.
#[must_use]
pub fn seal(batch: &v1::Batch) -> Record {
    frame::seal(&batch.encode_to_vec()).into()
}

fn number(tier: usize) -> i32 {
    tier as i32 + 1
}

fn event(pending: PendingEvent, hashes: &[u64]) -> v1::Event {
    let tier = pending.tier.map(|tier| number(tier as usize));
    let sequence_hashes = hashes.to_vec();
    let kind = match pending.kind {
        EventKind::Store(parent) => v1::event::Kind::Store(v1::Store {
            parent_sequence_hash: parent,
            sequence_hashes,
            tier: tier.unwrap_or_default(),
        }),
        EventKind::Remove => v1::event::Kind::Remove(v1::Remove {
            sequence_hashes,
            tier: tier.unwrap_or_default(),
        }),
        EventKind::Clear => v1::event::Kind::Clear(v1::Clear { tier }),
    };
    v1::Event { kind: Some(kind) }
}
