//! A random history over several epochs, with records lost, repeated and reordered: the set is always
//! the effect of exactly the applied events, and a snapshot at the end makes it equal to the publisher's.

use std::collections::BTreeSet;

use kvatlas_events::sequencer::{
    Events, Incarnation, Limits, Sequencer, SequencerState, SnapshotPart, Step, TickOutcome,
    TierDigest,
};
use kvatlas_types::Tier;
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    hold_back_batches: 4,
    hold_back_ms: 50,
    recover_ms: 200,
    snapshot_parts: 8,
    snapshot_hashes: 1_000,
};
const NOW_MS: u64 = 1_000_000;

type Set = BTreeSet<u64>;
type Change = (u64, bool);

#[derive(Clone, Debug)]
enum Record {
    Events { first: u64, changes: Vec<Change> },
    Part(SnapshotPart),
    Heartbeat(u64),
}

#[derive(Clone, Debug)]
enum Arrival {
    Record(Incarnation, Record),
    Tick(u64),
}

/// The changes of one epoch, one per event.
#[derive(Clone, Debug)]
struct Epoch {
    incarnation: Incarnation,
    changes: Vec<Change>,
}

impl Epoch {
    fn set_at(&self, event_id: u64) -> Set {
        let mut set = Set::new();
        for &(hash, stored) in &self.changes[..usize::try_from(event_id).unwrap()] {
            if stored {
                set.insert(hash)
            } else {
                set.remove(&hash)
            };
        }
        set
    }

    fn last(&self) -> u64 {
        self.changes.len() as u64
    }

    fn snapshot(&self, as_of: u64, cut: usize) -> Vec<Record> {
        let hashes: Vec<u64> = self.set_at(as_of).into_iter().collect();
        let mut digests = [TierDigest::default(); Tier::COUNT];
        digests[0] = TierDigest::of(&hashes);
        let mut cuts: Vec<&[u64]> = hashes.chunks(hashes.len().div_ceil(cut).max(1)).collect();
        if cuts.is_empty() {
            cuts.push(&[]);
        }
        let parts = u32::try_from(cuts.len()).unwrap();
        let part = |(part, hashes): (u32, &[u64])| SnapshotPart {
            as_of,
            part,
            parts,
            tier: 0,
            hashes: hashes.to_vec(),
            digests,
        };
        (0..parts).zip(cuts).map(part).map(Record::Part).collect()
    }

    /// Everything its publisher might ever send, in order, cut by the given numbers.
    fn records(&self, cuts: &[usize]) -> Vec<Arrival> {
        let mut records = Vec::new();
        let mut rest = &self.changes[..];
        let mut first = 1;
        for &cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (changes, later) = rest.split_at(cut.clamp(1, rest.len()));
            records.push(Record::Events {
                first,
                changes: changes.to_vec(),
            });
            first += changes.len() as u64;
            rest = later;
            match cut % 5 {
                0 => records.extend(self.snapshot(first - 1, 1 + cut % 3)),
                1 | 2 => records.push(Record::Heartbeat(first - 1)),
                _ => {}
            }
        }
        records
            .into_iter()
            .map(|record| Arrival::Record(self.incarnation, record))
            .collect()
    }
}

struct World {
    epochs: Vec<Epoch>,
    sequencer: Sequencer<Vec<Change>>,
    set: Set,
    now_ms: u64,
}

impl World {
    fn arrive(&mut self, arrival: &Arrival) {
        let mut steps = Vec::new();
        match arrival {
            Arrival::Tick(passed_ms) => {
                self.now_ms += passed_ms;
                let outcome = self.sequencer.on_tick(self.now_ms, &mut steps);
                assert_eq!(outcome == TickOutcome::RecoveryTimedOut, !steps.is_empty());
            }
            Arrival::Record(incarnation, record) => {
                let (incarnation, now_ms, steps) = (*incarnation, self.now_ms, &mut steps);
                match record.clone() {
                    Record::Heartbeat(last) => {
                        self.sequencer
                            .on_heartbeat(incarnation, last, now_ms, steps)
                    }
                    Record::Part(part) => {
                        self.sequencer
                            .on_snapshot_part(incarnation, part, now_ms, steps)
                    }
                    Record::Events { first, changes } => {
                        let count = u32::try_from(changes.len()).unwrap();
                        let events = Events {
                            first_event_id: first,
                            count,
                            shutdown: None,
                            payload: changes,
                        };
                        self.sequencer.on_events(incarnation, events, now_ms, steps)
                    }
                };
            }
        }
        steps.into_iter().for_each(|step| self.run(step));
        self.check();
    }

    fn run(&mut self, step: Step<Vec<Change>>) {
        match step {
            Step::Empty => self.set.clear(),
            Step::Apply { payload, skip } => {
                for (hash, stored) in payload.into_iter().skip(skip as usize) {
                    if stored {
                        self.set.insert(hash)
                    } else {
                        self.set.remove(&hash)
                    };
                }
            }
            Step::Replace(parts) => {
                self.set = parts.into_iter().flat_map(|part| part.hashes).collect();
            }
            Step::Close(reason) => panic!("nobody closed, but {reason:?}"),
        }
    }

    fn epoch(&self) -> Option<&Epoch> {
        self.epochs
            .iter()
            .find(|epoch| epoch.incarnation == self.sequencer.incarnation())
    }

    /// The set is the effect of the applied events, no more, no less, at every moment.
    fn check(&self) {
        let Some(epoch) = self.epoch() else {
            assert!(self.set.is_empty());
            return;
        };
        assert_eq!(self.set, epoch.set_at(self.sequencer.applied()));
        assert!(self.sequencer.known() <= epoch.last());
        assert!(self.sequencer.applied() <= self.sequencer.known());
    }
}

fn epochs() -> impl Strategy<Value = Vec<Epoch>> {
    let changes = prop::collection::vec((0..12u64, prop::bool::weighted(0.65)), 1..30);
    prop::collection::vec(changes, 1..4).prop_map(|histories| {
        let epoch = |(number, changes)| {
            let incarnation = Incarnation {
                epoch: 10 + number,
                instance: number,
            };
            Epoch {
                incarnation,
                changes,
            }
        };
        (0u64..).zip(histories).map(epoch).collect()
    })
}

/// Records of any epoch in nearly any order, some never, some repeatedly.
fn history() -> impl Strategy<Value = (Vec<Epoch>, Vec<Arrival>)> {
    let cuts = prop::collection::vec(0..7usize, 1..6);
    (epochs(), cuts).prop_flat_map(|(epochs, cuts)| {
        let sent: Vec<Arrival> = epochs
            .iter()
            .flat_map(|epoch| epoch.records(&cuts))
            .collect();
        let last = sent.len() as i64 - 1;
        // Each arrival takes the record at its own place, give or take a few, so that orders are
        // disturbed as transports disturb them and not beyond all recognition.
        let arrivals = prop::collection::vec((0..=last, -3..=3i64, 0..40u64), 0..3 * sent.len());
        (Just(epochs), Just(sent), arrivals, any::<bool>()).prop_map(
            move |(epochs, sent, mut arrivals, in_order)| {
                if in_order {
                    arrivals.sort_unstable();
                }
                let arrive = |(place, shift, tick): (i64, i64, u64)| {
                    let place = usize::try_from((place + shift).clamp(0, last)).unwrap();
                    let tick = (tick < 12).then_some(Arrival::Tick(tick * 10));
                    tick.into_iter().chain([sent[place].clone()])
                };
                let arrived = arrivals.into_iter().flat_map(arrive).collect();
                (epochs, arrived)
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_is_lost_repeated_or_reordered_a_snapshot_corrects_the_set(
        (epochs, arrived) in history()
    ) {
        let truth = epochs.last().cloned().expect("at least one epoch");
        let mut world = World {
            epochs,
            sequencer: Sequencer::new(LIMITS),
            set: Set::new(),
            now_ms: NOW_MS,
        };
        for arrival in &arrived {
            world.arrive(arrival);
        }
        // Whatever is known to exist and was not applied is not passed over in silence.
        world.arrive(&Arrival::Tick(LIMITS.hold_back_ms + 1));
        if world.sequencer.applied() < world.sequencer.known() {
            prop_assert_eq!(world.sequencer.state(), SequencerState::Recovering);
        }
        // The publisher beats, and is asked for a snapshot unless all is well.
        world.arrive(&Arrival::Record(truth.incarnation, Record::Heartbeat(truth.last())));
        world.arrive(&Arrival::Tick(LIMITS.hold_back_ms + 1));
        if world.sequencer.needs_snapshot() {
            for part in truth.snapshot(truth.last(), 3) {
                world.arrive(&Arrival::Record(truth.incarnation, part));
            }
        }
        prop_assert_eq!(world.sequencer.state(), SequencerState::Whole);
        prop_assert_eq!(world.sequencer.incarnation(), truth.incarnation);
        prop_assert_eq!(world.set, truth.set_at(truth.last()));
        prop_assert_eq!(world.sequencer.held_back_events(), 0);
    }
}
