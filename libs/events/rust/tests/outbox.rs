//! The outbox against a simple model: a receiver gets exactly the records that the rules allow.

use kvatlas_events::outbox::{Bounds, Outbox, Ticket};
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds {
    records_max: 4,
    bytes_max: 40,
};

/// A test record: the step at which it was pushed, and its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Record {
    Numbered(u32),
    Part { snapshot: u32, part: usize },
    Heartbeat(u32),
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        bytes: usize,
    },
    Heartbeat {
        bytes: usize,
    },
    Snapshot {
        parts: usize,
    },
    Require,
    Peek {
        records_max: usize,
        bytes_max: usize,
    },
    /// Acknowledge the peek that was made so many peeks ago, perhaps again.
    Acknowledge {
        peeks_ago: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0_usize..24).prop_map(|bytes| Step::Push { bytes }),
        2 => (0_usize..24).prop_map(|bytes| Step::Heartbeat { bytes }),
        2 => (1_usize..8).prop_map(|parts| Step::Snapshot { parts }),
        1 => Just(Step::Require),
        6 => (0_usize..7, 0_usize..60)
            .prop_map(|(records_max, bytes_max)| Step::Peek { records_max, bytes_max }),
        6 => (0_usize..3).prop_map(|peeks_ago| Step::Acknowledge { peeks_ago }),
    ];
    prop::collection::vec(step, 0..80)
}

/// The rules on plain lists: nothing is cached, every answer is computed from the lists.
#[derive(Default)]
struct Model {
    queue: Vec<(Record, usize)>,
    heartbeat: Option<(Record, usize)>,
    awaits_snapshot: bool,
    overflows: u64,
}

impl Model {
    fn push(&mut self, record: Record, bytes: usize) -> bool {
        if self.awaits_snapshot {
            return false;
        }
        self.queue.push((record, bytes));
        let numbered = || {
            self.queue
                .iter()
                .filter(|(r, _)| matches!(r, Record::Numbered(_)))
        };
        if numbered().count() > BOUNDS.records_max
            || numbered().map(|(_, bytes)| bytes).sum::<usize>() > BOUNDS.bytes_max
        {
            self.overflows += 1;
            self.queue.clear();
            self.awaits_snapshot = true;
            return false;
        }
        true
    }

    fn peek(&self, records_max: usize, bytes_max: usize) -> Vec<Record> {
        if self.awaits_snapshot {
            return Vec::new();
        }
        let mut taken: Vec<(Record, usize)> = Vec::new();
        for &(record, bytes) in self.queue.iter().chain(&self.heartbeat) {
            let total: usize = taken.iter().map(|(_, bytes)| bytes).sum::<usize>() + bytes;
            if !taken.is_empty() && (total > bytes_max || taken.len() >= records_max) {
                break;
            }
            taken.push((record, bytes));
        }
        taken.into_iter().map(|(record, _)| record).collect()
    }

    fn acknowledge(&mut self, records: &[Record], of_newest_peek: bool) {
        self.queue.retain(|(record, _)| !records.contains(record));
        if of_newest_peek
            && self
                .heartbeat
                .is_some_and(|(record, _)| records.contains(&record))
        {
            self.heartbeat = None;
        }
    }
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut outbox = Outbox::new(BOUNDS);
    let mut model = Model::default();
    let mut peeks: Vec<Option<(Ticket, Vec<Record>)>> = Vec::new();
    for (at, step) in (0..).zip(steps) {
        match step {
            Step::Push { bytes } => {
                let record = Record::Numbered(at);
                prop_assert_eq!(outbox.push(record, bytes), model.push(record, bytes));
            }
            Step::Heartbeat { bytes } => {
                outbox.push_heartbeat(Record::Heartbeat(at), bytes);
                model.heartbeat = Some((Record::Heartbeat(at), bytes));
            }
            Step::Snapshot { parts } => {
                let parts: Vec<_> = (0..parts)
                    .map(|part| (Record::Part { snapshot: at, part }, 30))
                    .collect();
                outbox.push_snapshot(parts.clone());
                model.queue = parts;
                model.awaits_snapshot = false;
            }
            Step::Require => {
                outbox.require_snapshot();
                model.queue.clear();
                model.awaits_snapshot = true;
            }
            Step::Peek {
                records_max,
                bytes_max,
            } => {
                let expected = model.peek(records_max, bytes_max);
                let peek = outbox
                    .peek(records_max, bytes_max)
                    .map(|(ticket, records)| {
                        (ticket, records.into_iter().copied().collect::<Vec<_>>())
                    });
                match &peek {
                    None => prop_assert!(expected.is_empty()),
                    Some((_, records)) => prop_assert_eq!(records, &expected),
                }
                peeks.push(peek);
            }
            Step::Acknowledge { peeks_ago } => {
                let peek = peeks.iter().rev().nth(peeks_ago);
                if let Some(Some((ticket, records))) = peek {
                    outbox.acknowledge(*ticket);
                    model.acknowledge(records, peeks_ago == 0);
                }
            }
        }
        check(&outbox, &model)?;
    }
    Ok(())
}

fn check(outbox: &Outbox<Record>, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(outbox.awaits_snapshot(), model.awaits_snapshot);
    prop_assert_eq!(outbox.overflows(), model.overflows);
    prop_assert_eq!(outbox.queued_records(), model.queue.len());
    prop_assert_eq!(
        outbox.queued_bytes(),
        model.queue.iter().map(|(_, b)| b).sum::<usize>()
    );
    prop_assert_eq!(outbox.is_empty(), model.peek(1, 0).is_empty());
    let part = |(record, _): &(Record, usize)| matches!(record, Record::Part { .. });
    prop_assert_eq!(outbox.holds_snapshot(), model.queue.iter().any(part));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn every_history_is_the_models(steps in steps()) {
        run(steps)?;
    }
}

fn peek_all(outbox: &mut Outbox<u32>) -> (Ticket, Vec<u32>) {
    let (ticket, records) = outbox
        .peek(usize::MAX, usize::MAX)
        .expect("something is queued");
    (ticket, records.into_iter().copied().collect())
}

#[test]
fn an_append_that_outlives_its_records_acknowledges_no_others() {
    let mut outbox = Outbox::new(BOUNDS);
    outbox.push(1, 10);
    outbox.push(2, 10);
    let (in_flight, _) = peek_all(&mut outbox);
    for record in 3..6 {
        outbox.push(record, 10); // the fifth overflows
    }
    assert!(outbox.awaits_snapshot());
    outbox.push_snapshot([(100, 10)]);
    assert!(outbox.push(6, 10));
    outbox.acknowledge(in_flight);
    assert_eq!(peek_all(&mut outbox).1, [100, 6]);
}

#[test]
fn a_heartbeat_replaced_while_in_flight_is_sent_itself() {
    let mut outbox = Outbox::new(BOUNDS);
    outbox.push_heartbeat(1, 10);
    let (in_flight, records) = peek_all(&mut outbox);
    assert_eq!(records, [1]);
    outbox.push_heartbeat(2, 10);
    outbox.acknowledge(in_flight);
    assert_eq!(peek_all(&mut outbox).1, [2]);
}

#[test]
fn a_snapshot_larger_than_the_bounds_does_not_overflow_the_records_behind_it() {
    let mut outbox = Outbox::new(BOUNDS);
    outbox.push_snapshot((0..100).map(|part| (part, 1_000)));
    assert!(outbox.push(100, 40));
    assert!(!outbox.push(101, 1));
    assert_eq!(outbox.overflows(), 1);
}

#[test]
fn a_record_longer_than_the_bound_is_an_overflow_not_a_panic() {
    let mut outbox = Outbox::new(BOUNDS);
    assert!(!outbox.push(1, usize::MAX));
    assert!(outbox.awaits_snapshot());
}

#[test]
fn a_repeated_acknowledgement_releases_nothing_more() {
    let mut outbox = Outbox::new(BOUNDS);
    outbox.push(1, 10);
    let (first, _) = peek_all(&mut outbox);
    outbox.acknowledge(first);
    outbox.push(2, 10);
    outbox.push_heartbeat(3, 10);
    outbox.acknowledge(first);
    assert_eq!(peek_all(&mut outbox).1, [2, 3]);
}
