//! Event ids that no life can have come to: refused where the life is known, and forgotten once it is.

use kvatlas_events::sequencer::{
    Closing, Digest, Elapsed, Events, Limits, Sequencer, SnapshotPart, Speaker, Standing, Step,
    TIERS, Verdict,
};

const LIMITS: Limits = Limits {
    hold_back_batches: 3,
    hold_back_ms: 100,
    recover_ms: 1_000,
    snapshot_parts: 8,
    snapshot_hashes: 100,
};
const NOW_MS: u64 = 1_000_000;
const LIFE: Speaker = Speaker {
    epoch: 5_000,
    instance: 7,
};
const JUMP: u64 = 1 << 40;

/// A sequencer under test, of the one life.
struct Bench {
    sequencer: Sequencer<()>,
    steps: Vec<Step<()>>,
}

impl Bench {
    fn new() -> Self {
        Self {
            sequencer: Sequencer::new(LIMITS),
            steps: Vec::new(),
        }
    }

    fn events(&mut self, first_event_id: u64, count: u32, closing: Option<Closing>) -> Verdict {
        let events = Events {
            first_event_id,
            count,
            closing,
            payload: (),
        };
        self.sequencer
            .on_events(LIFE, events, NOW_MS, &mut self.steps)
    }

    fn heartbeat(&mut self, last: u64) -> Verdict {
        self.sequencer
            .on_heartbeat(LIFE, last, NOW_MS, &mut self.steps)
    }

    fn snapshot(&mut self, as_of: u64, hashes: &[u64]) -> Verdict {
        let mut digests = [Digest::default(); TIERS];
        digests[0] = Digest::of(hashes);
        let part = SnapshotPart {
            as_of,
            part: 0,
            parts: 1,
            tier: 0,
            hashes: hashes.to_vec(),
            digests,
        };
        self.sequencer
            .on_snapshot_part(LIFE, part, NOW_MS, &mut self.steps)
    }

    fn standing(&self) -> (u64, u64, Standing) {
        let sequencer = &self.sequencer;
        (sequencer.applied(), sequencer.known(), sequencer.standing())
    }
}

#[test]
fn an_event_id_that_jumps_is_refused_and_harms_nothing() {
    let mut bench = Bench::new();
    bench.events(1, 4, None);
    let closing = Some(Closing::EngineGone);
    assert_eq!(bench.events(4 + JUMP, 1, None), Verdict::EventIdJump);
    assert_eq!(bench.events(4 + JUMP, 1, closing), Verdict::EventIdJump);
    assert_eq!(bench.heartbeat(u64::MAX), Verdict::EventIdJump);
    assert_eq!(bench.snapshot(4 + JUMP, &[1]), Verdict::EventIdJump);
    assert_eq!(bench.standing(), (4, 4, Standing::Whole));
    assert_eq!(bench.events(5, 1, None), Verdict::Applied);
    let later_ms = NOW_MS + 1_000_000;
    let elapsed = bench.sequencer.on_tick(later_ms, &mut bench.steps);
    assert_eq!(elapsed, Elapsed::Nothing);
    // As far as that, it may have been a long absence.
    assert_eq!(bench.heartbeat(5 + (1 << 38)), Verdict::HeldBack);
}

#[test]
fn a_life_that_is_first_heard_of_by_a_jump_is_whole_with_its_snapshot() {
    for by_events in [true, false] {
        let mut bench = Bench::new();
        let first = if by_events {
            bench.events(JUMP, 2, None)
        } else {
            bench.heartbeat(JUMP)
        };
        assert_eq!(first, Verdict::HeldBack);
        assert_eq!(bench.events(9, 1, None), Verdict::HeldBack);
        assert_eq!(bench.snapshot(7, &[1, 2]), Verdict::Applied);
        assert_eq!(bench.sequencer.known(), 9);
        assert_eq!(bench.events(8, 1, None), Verdict::Applied);
        assert_eq!(bench.standing(), (9, 9, Standing::Whole));
    }
}
