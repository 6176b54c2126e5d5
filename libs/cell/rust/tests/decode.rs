//! The hand-written decoder against the generated one, on random batches and on garbage.

use kvatlas_cell::apply::decode::{Body, Event, decode};
use kvatlas_index::Tier;
use kvatlas_wire::{frame, v1};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;

fn header() -> v1::Header {
    v1::Header {
        worker: Some(v1::Worker {
            worker_id: 7,
            dp_rank: 3,
        }),
        epoch: 1 << 50,
        instance_id: u64::MAX,
        cell: "blue".to_owned(),
        model: "models/ü".to_owned(),
        block_size: 16,
        hash_contract: "contract".to_owned(),
        publisher: "host".to_owned(),
    }
}

fn events() -> impl Strategy<Value = Vec<v1::Event>> {
    let hashes = || vec(any::<u64>(), 0..9);
    let store = (any::<Option<u64>>(), hashes(), 1..5i32).prop_map(|(parent, hashes, tier)| {
        v1::event::Kind::Store(v1::Store {
            parent_sequence_hash: parent,
            sequence_hashes: hashes,
            tier,
        })
    });
    let remove = (hashes(), 1..5i32).prop_map(|(sequence_hashes, tier)| {
        v1::event::Kind::Remove(v1::Remove {
            sequence_hashes,
            tier,
        })
    });
    let clear =
        prop::option::of(1..5i32).prop_map(|tier| v1::event::Kind::Clear(v1::Clear { tier }));
    let event = prop_oneof![store, remove, clear].prop_map(|kind| v1::Event { kind: Some(kind) });
    vec(event, 1..20)
}

fn tier(number: i32) -> Tier {
    Tier::ALL[usize::try_from(number).unwrap() - 1]
}

/// The decoder's event for an event of the generated code.
fn expected(event: &v1::Event) -> (Event, Vec<u64>) {
    match event.kind.clone().unwrap() {
        v1::event::Kind::Store(store) => {
            (Event::Store(tier(store.tier), 0..0), store.sequence_hashes)
        }
        v1::event::Kind::Remove(it) => (Event::Remove(tier(it.tier), 0..0), it.sequence_hashes),
        v1::event::Kind::Clear(clear) => (Event::Clear(clear.tier.map(tier)), Vec::new()),
        v1::event::Kind::Shutdown(_) => unreachable!("not generated"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_are_read_as_the_generated_code_reads_them(events in events(), first in 1..1u64 << 60) {
        let batch = v1::Batch {
            header: Some(header()),
            first_event_id: first,
            events: events.clone(),
            ..Default::default()
        };
        let record = frame::seal(&batch.encode_to_vec());
        let record = decode(&record).unwrap();
        prop_assert_eq!(record.header.worker.worker_id, 7);
        prop_assert_eq!(record.header.worker.dp_rank, 3);
        prop_assert_eq!(record.header.incarnation.epoch, 1 << 50);
        prop_assert_eq!(record.header.incarnation.instance, u64::MAX);
        prop_assert_eq!(record.header.model, "models/ü");
        let Body::Events(read) = record.body else { panic!("events are expected") };
        prop_assert_eq!(read.first_event_id, first);
        prop_assert_eq!(read.count as usize, events.len());
        let list = &read.payload;
        for (event, read) in events.iter().zip(&list.events) {
            let (kind, hashes) = expected(event);
            match (kind, read) {
                (Event::Store(a, _), Event::Store(b, range))
                | (Event::Remove(a, _), Event::Remove(b, range)) => {
                    prop_assert_eq!(a, *b);
                    prop_assert_eq!(hashes.as_slice(), &list.hashes[range.clone()]);
                }
                (kind, read) => prop_assert_eq!(&kind, read),
            }
        }
    }

    #[test]
    fn a_snapshots_part_is_read_as_it_was_written(
        hashes in vec(any::<u64>(), 0..50),
        part in 0..3u32,
        blocks in any::<u64>(),
        digest in any::<u64>(),
    ) {
        let snapshot = v1::Snapshot {
            as_of_event_id: 99,
            part,
            parts: 3,
            tier: 2,
            sequence_hashes: hashes.clone(),
            digests: vec![v1::TierDigest { tier: 2, blocks, digest }],
        };
        let batch =
            v1::Batch { header: Some(header()), snapshot: Some(snapshot), ..Default::default() };
        let record = frame::seal(&batch.encode_to_vec());
        let Body::Snapshot(read) = decode(&record).unwrap().body else { panic!("a part") };
        prop_assert_eq!((read.as_of, read.part, read.parts, read.tier), (99, part, 3, 1));
        prop_assert_eq!(read.hashes, hashes);
        prop_assert_eq!((read.digests[1].blocks, read.digests[1].digest), (blocks, digest));
    }

    #[test]
    fn no_payload_makes_the_decoder_panic(
        events in events(),
        cut in any::<prop::sample::Index>(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let batch = v1::Batch {
            header: Some(header()),
            first_event_id: 1,
            events,
            ..Default::default()
        };
        let mut payload = batch.encode_to_vec();
        for (place, byte) in flips {
            let place = place.index(payload.len());
            payload[place] = byte;
        }
        payload.truncate(cut.index(payload.len() + 1));
        let _ = decode(&frame::seal(&payload));
    }
}
