//! The synthetic fleet that an indexer is filled with, and queries whose answers are known.
//!
//! Everything follows from the seed, so a run can query what an earlier run has stored.

use bytes::Bytes;
use kvatlas_hashing::sequence_hashes_into;
use kvatlas_wire::v1::FindMatchesRequest;
use prost::Message as _;

use crate::flags::Flags;
use crate::index::engine::mix as splitmix;

/// Prefixes that all workers share.
pub const PREFIXES: u64 = 8;

/// The conversations of all workers, made from the seed.
pub struct Fleet {
    seed: u64,
    depth: usize,
    shared: usize,
    /// Conversations of each worker.
    pub conversations: u64,
}

impl Fleet {
    /// The fleet that the flags describe.
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

    /// Chunk hashes of one conversation, shared prefix first.
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
        let mut hashes = vec![0; self.depth];
        sequence_hashes_into(&self.chunks(worker, conversation), &mut hashes);
        hashes
    }

    /// The `number`-th query in gRPC's framing, and the worker that holds all of its blocks.
    pub fn question(&self, flags: &Flags, number: u64) -> (Bytes, u64) {
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
        (framed.into(), worker)
    }
}

/// One step of SplitMix64.
fn mix(value: u64) -> u64 {
    splitmix(value.wrapping_add(0x9e37_79b9_7f4a_7c15))
}
