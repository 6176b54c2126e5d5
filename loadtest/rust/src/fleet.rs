//! The synthetic fleet that an indexer is filled with, and the queries that it can answer.
//!
//! Everything follows from the seed, so that a run can ask about what an earlier run stored.

use kvatlas_hashing::sequence_step;
use kvatlas_wire::v1::FindMatchesRequest;
use prost::Message as _;

use crate::flags::Flags;

/// Prefixes that all workers share.
pub const PREFIXES: u64 = 8;

/// Chunk hashes of one conversation, shared prefix first.
pub struct Fleet {
    seed: u64,
    depth: usize,
    shared: usize,
    /// Conversations of each worker.
    pub conversations: u64,
}

/// One encoded request in gRPC's framing, and what must come back.
pub struct Question {
    /// Prefix and message.
    pub framed: Vec<u8>,
    /// Who holds all of it.
    pub worker_id: u64,
}

impl Fleet {
    /// As the flags say.
    pub fn new(flags: &Flags) -> Self {
        let shared = flags.depth / 4;
        let room = flags.blocks - PREFIXES as usize * shared;
        let conversations = (room / (flags.depth - shared)).max(1) as u64;
        Self {
            seed: flags.seed,
            depth: flags.depth,
            shared,
            conversations,
        }
    }

    /// Blocks that every worker holds of every conversation.
    pub fn shared_depth(&self) -> usize {
        self.shared
    }

    fn chunks(&self, worker: u64, conversation: u64) -> Vec<u64> {
        let prefix = conversation % PREFIXES;
        let own = mix(self.seed ^ mix(worker << 32 | conversation));
        (0..self.depth as u64)
            .map(|block| {
                let origin = if block < self.shared as u64 {
                    mix(self.seed ^ prefix)
                } else {
                    own
                };
                mix(origin.wrapping_add(block))
            })
            .collect()
    }

    /// Sequence hashes of one conversation.
    pub fn sequence(&self, worker: u64, conversation: u64) -> Vec<u64> {
        let mut parent = None;
        let step = |chunk| {
            let hash = parent.map_or(chunk, |parent| sequence_step(parent, chunk));
            parent = Some(hash);
            hash
        };
        self.chunks(worker, conversation)
            .into_iter()
            .map(step)
            .collect()
    }

    /// The `number`-th query.
    pub fn question(&self, flags: &Flags, number: u64) -> Question {
        let draw = mix(self.seed.wrapping_mul(3) ^ number);
        let (worker, conversation) = (draw % flags.workers, (draw >> 32) % self.conversations);
        let mut request = FindMatchesRequest {
            model: flags.model.clone(),
            block_size: flags.block_size,
            hash_contract: flags.hash_contract.clone(),
            limit: flags.limit,
            ..Default::default()
        };
        if flags.chunks {
            request.chunk_hashes = self.chunks(worker, conversation);
        } else {
            request.sequence_hashes = self.sequence(worker, conversation);
        }
        let message = request.encode_to_vec();
        let mut framed = vec![0];
        // A request of a few thousand hashes has far less than 2^32 bytes.
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(&message);
        Question {
            framed,
            worker_id: worker,
        }
    }
}

/// SplitMix64's output function: neighbours become strangers.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
