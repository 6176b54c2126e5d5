//! Memory pressure: many small workers whose publishers push to a replica.
//!
//! Under memory pressure the largest workers are evicted first. These workers are smaller than the simulated ones, so the
//! simulated ones are evicted, and come back when the small workers have gone.

use kvatlas_wire::v1;

use crate::log::Record;
use crate::plan::START_MS;
use crate::record::{RecordEncoder, seal};
use crate::rng::Rng;

/// Id of the first small worker.
pub const FIRST: u64 = 1_000;
const COUNT: u64 = 150;
const BLOCKS_MAX: u64 = 24;
const HOST_BLOCKS_MAX: usize = 64;

fn encoder(number: u64, round: u64) -> RecordEncoder {
    RecordEncoder {
        worker: FIRST + number,
        epoch: START_MS * 1_000 + round,
        instance: number,
        name: usize::MAX,
    }
}

/// The first records of the small workers, in their epoch of this round.
#[must_use]
pub fn arrival_records(round: u64, rng: &mut Rng) -> Vec<Record> {
    let mut first_record = |number| {
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
            ..encoder(number, round).batch()
        })
    };
    (0..COUNT).map(&mut first_record).collect()
}

/// Records of one worker with this many blocks, and with as many host blocks as the simulated workers can have at most.
/// They show how much memory an index needs for them.
#[must_use]
pub fn sizing_records(blocks: u64) -> Vec<Record> {
    let mut rng = Rng::new(0);
    let hashes: Vec<u64> = (0..blocks).map(|_| rng.any()).collect();
    let host = hashes.iter().take(HOST_BLOCKS_MAX).copied().collect();
    let stores = [(1, v1::Tier::Device, hashes), (2, v1::Tier::Host, host)];
    let records = stores.map(|(first_event_id, tier, sequence_hashes)| {
        let kind = Some(v1::event::Kind::Store(v1::Store {
            parent_sequence_hash: None,
            sequence_hashes,
            tier: tier.into(),
        }));
        seal(&v1::Batch {
            first_event_id,
            events: vec![v1::Event { kind }],
            ..encoder(0, 0).batch()
        })
    });
    records.to_vec()
}

/// The last records of the small workers in this round.
#[must_use]
pub fn departure_records(round: u64) -> Vec<Record> {
    let gone = v1::shutdown::Reason::EngineGone;
    (0..COUNT)
        .map(|number| encoder(number, round).shutdown(2, gone))
        .collect()
}
