//! Every reachable state of the shipped sequencer and the shipped outbox, within small bounds.
//!
//! [`world::World`] holds the structures that the services drive, not copies of their logic, and the
//! checker clones and compares them. [`world`] has the possible steps and the properties, [`ending`] shows
//! that every recovery ends, [`receiver`] has the rules that are broken on purpose.
//!
//! No configuration has all bounds at their largest, since that is about 10⁸ states. Each has a few at
//! their largest; `EVERYTHING` has every kind of fault at once, with fewer events.

mod ending;
mod publisher;
mod receiver;
mod script;
mod world;

use receiver::Mutation;
use stateright::{Checker, HasDiscoveries, Model};
use world::{Bounds, EXPLAINED, FORWARD, Faults, HEALED, TRUE, UNTORN};

const NONE: Faults = Faults {
    drops: 0,
    duplicates: 0,
    reorderings: 0,
    lost_acks: 0,
    publisher_crashes: 0,
    indexer_crashes: 0,
    flips: 0,
};

const LOSSY: Faults = Faults {
    drops: 1,
    duplicates: 1,
    reorderings: 1,
    ..NONE
};

/// One epoch of five single events, through a log that loses, repeats and reorders one record.
const ONE_EPOCH: Bounds = Bounds {
    name: "one epoch",
    events: [5, 0],
    batch_events: 1,
    acks_late: false,
    outbox_records: 2,
    ring: 2,
    beats: 0,
    carries: false,
    leaves: false,
    rereads: false,
    faults: LOSSY,
    broken: None,
};

/// The same with four events in batches, so that a batch may be partly applied.
const BATCHES: Bounds = Bounds {
    name: "batches",
    events: [4, 0],
    batch_events: 2,
    ..ONE_EPOCH
};

/// A publisher that is killed and comes back without a checkpoint, in the next epoch.
const TWO_EPOCHS: Bounds = Bounds {
    name: "two epochs",
    events: [3, 2],
    faults: Faults {
        publisher_crashes: 1,
        ..LOSSY
    },
    ..BATCHES
};

/// With a heartbeat among the events, which may be lost, repeated and overtaken as well.
const HEARTBEATS: Bounds = Bounds {
    name: "heartbeats",
    events: [2, 1],
    beats: 1,
    ..TWO_EPOCHS
};

/// A publisher that comes back with a checkpoint, and so opens with a snapshot.
const CHECKPOINT: Bounds = Bounds {
    name: "checkpoint",
    events: [1, 3],
    carries: true,
    ..TWO_EPOCHS
};

/// An indexer that is killed, and reads on where it stood.
const INDEXER_DIES: Bounds = Bounds {
    name: "indexer dies",
    events: [4, 0],
    faults: Faults {
        indexer_crashes: 1,
        ..LOSSY
    },
    ..BATCHES
};

/// An indexer that is killed and reads the log again, including the older epoch.
const READS_AGAIN: Bounds = Bounds {
    name: "reads again",
    events: [2, 1],
    rereads: true,
    faults: Faults {
        publisher_crashes: 1,
        indexer_crashes: 1,
        duplicates: 1,
        reorderings: 1,
        ..NONE
    },
    ..BATCHES
};

/// A publisher that leaves. A lost shutdown is handled by the lease, so nothing is lost here.
const LEAVES: Bounds = Bounds {
    name: "leaves",
    events: [2, 2],
    leaves: true,
    faults: Faults {
        drops: 0,
        ..TWO_EPOCHS.faults
    },
    ..BATCHES
};

/// An outbox that overflows and is emptied, with acknowledgements that are late, repeated or for dropped records.
const LATE_ACKS: Bounds = Bounds {
    name: "late acknowledgements",
    acks_late: true,
    faults: Faults {
        lost_acks: 1,
        ..NONE
    },
    ..ONE_EPOCH
};

/// A damaged set: the digests find it.
const FLIPS: Bounds = Bounds {
    name: "a bit turns over",
    faults: Faults { flips: 1, ..LOSSY },
    events: [3, 0],
    ..BATCHES
};

/// All kinds of faults, one of each.
const EVERYTHING: Bounds = Bounds {
    name: "everything",
    events: [1, 1],
    faults: Faults {
        publisher_crashes: 1,
        indexer_crashes: 1,
        lost_acks: 1,
        ..LOSSY
    },
    rereads: true,
    acks_late: true,
    ..BATCHES
};

const ALL: [Bounds; 11] = [
    ONE_EPOCH,
    BATCHES,
    TWO_EPOCHS,
    HEARTBEATS,
    CHECKPOINT,
    INDEXER_DIES,
    READS_AGAIN,
    LEAVES,
    LATE_ACKS,
    FLIPS,
    EVERYTHING,
];

#[test]
fn every_state_is_true_and_every_recovery_ends() {
    let mut states = 0;
    for bounds in ALL {
        let any = HasDiscoveries::Any;
        let checker = bounds.checker().finish_when(any).spawn_bfs().join();
        let found = checker.discoveries().into_iter().next();
        if let Some((name, path)) = found {
            let last = path.last_state().clone();
            let steps = path.into_actions();
            panic!(
                "{}: not so: {name}\nafter {steps:?}\n{last:#?}",
                bounds.name
            );
        }
        assert!(checker.is_done(), "{}: not all was looked at", bounds.name);
        let ending = ending::examine(&bounds);
        println!(
            "{:>22}: {:>7} states, {:>4} of them quiet, the longest run of {} steps",
            bounds.name,
            ending.states,
            ending.quiet,
            ending.longest_run.unwrap_or_default(),
        );
        assert_eq!(
            ending.states,
            checker.unique_state_count(),
            "{}",
            bounds.name
        );
        assert!(ending.longest_run.is_some(), "{}: a circle", bounds.name);
        assert_eq!(ending.hopeless, 0, "{}: no way to heal", bounds.name);
        states += ending.states;
    }
    println!("{:>22}: {states:>7} states", "together");
}

#[test]
fn each_broken_rule_is_caught() {
    let caught = [
        (Mutation::NoFencing, READS_AGAIN, FORWARD),
        (Mutation::NoFencing, TWO_EPOCHS, TRUE),
        (Mutation::NoDedup, BATCHES, TRUE),
        (Mutation::NoGapCheck, ONE_EPOCH, TRUE),
        (Mutation::TornSnapshot, INDEXER_DIES, UNTORN),
        (Mutation::OldSnapshot, INDEXER_DIES, TRUE),
        (Mutation::HeartbeatsIgnored, ONE_EPOCH, HEALED),
        (Mutation::OverflowIgnored, LATE_ACKS, EXPLAINED),
        (Mutation::AcknowledgesAll, LATE_ACKS, EXPLAINED),
    ];
    for (mutation, bounds, property) in caught {
        let broken = Bounds {
            broken: Some(mutation),
            ..bounds
        };
        let only = HasDiscoveries::AllOf([property].into());
        let checker = broken.checker().finish_when(only).spawn_bfs().join();
        let path = checker.discovery(property);
        let path = path.unwrap_or_else(|| panic!("{mutation:?} was not caught in {}", bounds.name));
        println!(
            "{mutation:?} in {}: not so after {} steps: {property}",
            bounds.name,
            path.into_actions().len()
        );
    }
}
