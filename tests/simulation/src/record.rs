//! The records of a life, encoded as publishers encode them.

use kvatlas_wire::{frame, v1};
use prost::Message as _;

use crate::engine::TIERS;
use crate::log::Record;
use crate::tree::{Set, Tree, blocks};

/// The cell's terms.
pub const CELL: &str = "simulated";
/// The cell's model.
pub const MODEL: &str = "model";
/// Tokens per block.
pub const BLOCK_SIZE: u32 = 16;

/// One change of the published set: these blocks, in this order, came to a tier or left it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Head first.
    Store(usize, Vec<usize>),
    /// Tail first.
    Remove(usize, Vec<usize>),
    /// Everywhere.
    Clear,
}

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speaker {
    /// The worker's id.
    pub worker: u64,
    /// Of this life.
    pub epoch: u64,
    /// Of this process.
    pub instance: u64,
}

impl Speaker {
    fn batch(self) -> v1::Batch {
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

    /// Numbered events.
    #[must_use]
    pub fn events(self, first: u64, changes: &[Change], tree: &Tree) -> Record {
        seal(&v1::Batch {
            first_event_id: first,
            events: changes.iter().map(|change| event(change, tree)).collect(),
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
    pub fn snapshot(
        self,
        as_of: u64,
        sets: [Set; TIERS],
        part_hashes: usize,
        tree: &Tree,
    ) -> Vec<Record> {
        let mut cuts: Vec<(usize, Vec<u64>)> = Vec::new();
        for (tier, &set) in sets.iter().enumerate() {
            let hashes: Vec<u64> = blocks(set).map(|block| tree.hashes[block]).collect();
            cuts.extend(hashes.chunks(part_hashes).map(|cut| (tier, cut.to_vec())));
        }
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
                digests: digests(sets, tree),
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
    pub fn heartbeat(self, last_event_id: u64, sets: [Set; TIERS], tree: &Tree) -> Record {
        let heartbeat = v1::Heartbeat {
            last_event_id,
            digests: digests(sets, tree),
            publisher_rpc: format!("publisher-{}", self.worker),
            ..v1::Heartbeat::default()
        };
        seal(&v1::Batch {
            heartbeat: Some(heartbeat),
            ..self.batch()
        })
    }
}

/// What an indexer must find of a set.
#[must_use]
pub fn digests(sets: [Set; TIERS], tree: &Tree) -> Vec<v1::TierDigest> {
    let digest = |(tier, &set): (usize, &Set)| v1::TierDigest {
        tier: number(tier),
        blocks: u64::from(set.count_ones()),
        digest: blocks(set).fold(0, |xor, block| xor ^ tree.hashes[block]),
    };
    let named = sets.iter().enumerate().map(digest);
    named.filter(|digest| digest.blocks > 0).collect()
}

fn number(tier: usize) -> i32 {
    tier as i32 + 1
}

fn seal(batch: &v1::Batch) -> Record {
    frame::seal(&batch.encode_to_vec()).into()
}

fn event(change: &Change, tree: &Tree) -> v1::Event {
    let hashes = |blocks: &[usize]| blocks.iter().map(|&block| tree.hashes[block]).collect();
    let kind = match change {
        Change::Store(tier, stored) => v1::event::Kind::Store(v1::Store {
            parent_sequence_hash: stored
                .first()
                .and_then(|&block| tree.parent(block))
                .map(|parent| tree.hashes[parent]),
            sequence_hashes: hashes(stored),
            tier: number(*tier),
        }),
        Change::Remove(tier, removed) => v1::event::Kind::Remove(v1::Remove {
            sequence_hashes: hashes(removed),
            tier: number(*tier),
        }),
        Change::Clear => v1::event::Kind::Clear(v1::Clear { tier: None }),
    };
    v1::Event { kind: Some(kind) }
}
