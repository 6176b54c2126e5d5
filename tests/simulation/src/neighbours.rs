//! Other workers of the cell, many and small, whose publishers push to a replica: they take the memory.
//!
//! The largest workers are put out first when memory is short. These are smaller than the simulated
//! ones, so it is those that go, and come back when the neighbours have gone.

use kvatlas_wire::v1;

use crate::log::Record;
use crate::plan::START_MS;
use crate::record::{Speaker, seal};
use crate::rng::Rng;

/// The first one's id.
pub const FIRST: u64 = 1_000;
const COUNT: u64 = 150;
const BLOCKS_MAX: u64 = 24;
const HOST_BLOCKS_MAX: usize = 64;

fn speaker(number: u64, visit: u64) -> Speaker {
    Speaker {
        worker: FIRST + number,
        epoch: START_MS * 1_000 + visit,
        instance: number,
        name: usize::MAX,
    }
}

/// What they say when they come, for the how manieth time.
#[must_use]
pub fn arrive(visit: u64, rng: &mut Rng) -> Vec<Record> {
    let mut first_words = |number| {
        let blocks = rng.between(1, BLOCKS_MAX);
        let store = v1::Store {
            parent_sequence_hash: None,
            sequence_hashes: (0..blocks).map(|_| rng.any()).collect(),
            tier: v1::Tier::Device.into(),
        };
        let kind = Some(v1::event::Kind::Store(store));
        seal(&v1::Batch {
            first_event_id: 1,
            events: vec![v1::Event { kind }],
            ..speaker(number, visit).batch()
        })
    };
    (0..COUNT).map(&mut first_words).collect()
}

/// One worker with so many blocks, and as many of the host's as the simulated workers can have at most:
/// to see what an index takes for them.
#[must_use]
pub fn weights(blocks: u64) -> Vec<Record> {
    let mut rng = Rng::new(0);
    let hashes: Vec<u64> = (0..blocks).map(|_| rng.any()).collect();
    let host = hashes.iter().take(HOST_BLOCKS_MAX).copied().collect();
    let stores = [(1, v1::Tier::Device, hashes), (2, v1::Tier::Host, host)];
    let words = stores.map(|(first_event_id, tier, sequence_hashes)| {
        let kind = Some(v1::event::Kind::Store(v1::Store {
            parent_sequence_hash: None,
            sequence_hashes,
            tier: tier.into(),
        }));
        seal(&v1::Batch {
            first_event_id,
            events: vec![v1::Event { kind }],
            ..speaker(0, 0).batch()
        })
    });
    words.to_vec()
}

/// Their last words, if they came so many times.
#[must_use]
pub fn leave(visit: u64) -> Vec<Record> {
    let gone = v1::shutdown::Reason::EngineGone;
    (0..COUNT)
        .map(|number| speaker(number, visit).shutdown(2, gone))
        .collect()
}
