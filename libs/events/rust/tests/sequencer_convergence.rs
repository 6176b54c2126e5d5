//! Any interleaving of losses, repetitions and reorderings of a random history, over several lives of
//! a publisher, keeps the set at exactly the events that are counted as applied, and a snapshot
//! at the end brings it to the truth.

use std::collections::BTreeSet;

use kvatlas_events::sequencer::{
    Digest, Elapsed, Events, Limits, Sequencer, SnapshotPart, Speaker, Standing, Step, TIERS,
};
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
enum Happening {
    Record(Speaker, Record),
    Tick(u64),
}

/// One life: the set after each event, from none to all.
#[derive(Clone, Debug)]
struct Life {
    speaker: Speaker,
    changes: Vec<Change>,
}

impl Life {
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
        let mut digests = [Digest::default(); TIERS];
        digests[0] = Digest::of(&hashes);
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
    fn records(&self, cuts: &[usize]) -> Vec<Happening> {
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
            .map(|record| Happening::Record(self.speaker, record))
            .collect()
    }
}

struct World {
    lives: Vec<Life>,
    sequencer: Sequencer<Vec<Change>>,
    set: Set,
    now_ms: u64,
}

impl World {
    fn happen(&mut self, happening: &Happening) {
        let mut steps = Vec::new();
        match happening {
            Happening::Tick(passed_ms) => {
                self.now_ms += passed_ms;
                let elapsed = self.sequencer.on_tick(self.now_ms, &mut steps);
                assert_eq!(elapsed == Elapsed::GivenUp, !steps.is_empty());
            }
            Happening::Record(speaker, record) => {
                let (speaker, now_ms, steps) = (*speaker, self.now_ms, &mut steps);
                match record.clone() {
                    Record::Heartbeat(last) => {
                        self.sequencer.on_heartbeat(speaker, last, now_ms, steps)
                    }
                    Record::Part(part) => self
                        .sequencer
                        .on_snapshot_part(speaker, part, now_ms, steps),
                    Record::Events { first, changes } => {
                        let count = u32::try_from(changes.len()).unwrap();
                        let events = Events {
                            first_event_id: first,
                            count,
                            closing: None,
                            payload: changes,
                        };
                        self.sequencer.on_events(speaker, events, now_ms, steps)
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
            Step::Close(closing) => panic!("nobody closed, but {closing:?}"),
        }
    }

    fn life(&self) -> Option<&Life> {
        self.lives
            .iter()
            .find(|life| life.speaker == self.sequencer.speaker())
    }

    /// The set is the effect of the applied events, no more, no less, at every moment.
    fn check(&self) {
        let Some(life) = self.life() else {
            assert!(self.set.is_empty());
            return;
        };
        assert_eq!(self.set, life.set_at(self.sequencer.applied()));
        assert!(self.sequencer.known() <= life.last());
        assert!(self.sequencer.applied() <= self.sequencer.known());
    }
}

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let changes = prop::collection::vec((0..12u64, prop::bool::weighted(0.65)), 1..30);
    prop::collection::vec(changes, 1..4).prop_map(|histories| {
        let life = |(number, changes)| {
            let speaker = Speaker {
                epoch: 10 + number,
                instance: number,
            };
            Life { speaker, changes }
        };
        (0u64..).zip(histories).map(life).collect()
    })
}

/// What arrives: any records of any life, in nearly any order, some never, some often.
fn history() -> impl Strategy<Value = (Vec<Life>, Vec<Happening>)> {
    let cuts = prop::collection::vec(0..7usize, 1..6);
    (lives(), cuts).prop_flat_map(|(lives, cuts)| {
        let sent: Vec<Happening> = lives.iter().flat_map(|life| life.records(&cuts)).collect();
        let last = sent.len() as i64 - 1;
        // Each arrival takes the record at its own place, give or take a few, so that orders are
        // disturbed as transports disturb them and not beyond all recognition.
        let arrivals = prop::collection::vec((0..=last, -3..=3i64, 0..40u64), 0..3 * sent.len());
        (Just(lives), Just(sent), arrivals, any::<bool>()).prop_map(
            move |(lives, sent, mut arrivals, in_order)| {
                if in_order {
                    arrivals.sort_unstable();
                }
                let arrive = |(place, shift, tick): (i64, i64, u64)| {
                    let place = usize::try_from((place + shift).clamp(0, last)).unwrap();
                    let tick = (tick < 12).then_some(Happening::Tick(tick * 10));
                    tick.into_iter().chain([sent[place].clone()])
                };
                let happenings = arrivals.into_iter().flat_map(arrive).collect();
                (lives, happenings)
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
    fn whatever_is_lost_repeated_or_reordered_a_snapshot_brings_the_truth(
        (lives, happenings) in history()
    ) {
        let truth = lives.last().cloned().expect("at least one life");
        let mut world = World {
            lives,
            sequencer: Sequencer::new(LIMITS),
            set: Set::new(),
            now_ms: NOW_MS,
        };
        for happening in &happenings {
            world.happen(happening);
        }
        // Whatever is known to exist and was not applied is not passed over in silence.
        world.happen(&Happening::Tick(LIMITS.hold_back_ms + 1));
        if world.sequencer.applied() < world.sequencer.known() {
            prop_assert_eq!(world.sequencer.standing(), Standing::Recovering);
        }
        // The publisher beats, and is asked for a snapshot unless all is well.
        world.happen(&Happening::Record(truth.speaker, Record::Heartbeat(truth.last())));
        world.happen(&Happening::Tick(LIMITS.hold_back_ms + 1));
        if world.sequencer.needs_snapshot() {
            for part in truth.snapshot(truth.last(), 3) {
                world.happen(&Happening::Record(truth.speaker, part));
            }
        }
        prop_assert_eq!(world.sequencer.standing(), Standing::Whole);
        prop_assert_eq!(world.sequencer.speaker(), truth.speaker);
        prop_assert_eq!(world.set, truth.set_at(truth.last()));
        prop_assert_eq!(world.sequencer.held_back_events(), 0);
    }
}
