//! Implausible event ids: refused in a known epoch, and forgotten with its first snapshot.

use kvatlas_events::sequencer::{
    SequencerState, ShutdownReason, SnapshotPart, TickOutcome, Verdict,
};

use crate::bench::{Bench, snapshot};

const JUMP: u64 = 1 << 40;

fn one_part(as_of: u64, hashes: &[u64]) -> SnapshotPart {
    snapshot(as_of, &[hashes]).remove(0)
}

fn known(bench: &Bench) -> (u64, u64, SequencerState) {
    let sequencer = &bench.sequencer;
    (sequencer.applied(), sequencer.known(), sequencer.state())
}

#[test]
fn an_event_id_that_jumps_is_refused_and_harms_nothing() {
    let mut bench = Bench::new();
    bench.events(1, 4);
    assert_eq!(bench.events(4 + JUMP, 1), Verdict::EventIdJump);
    assert_eq!(
        bench.close(4 + JUMP, ShutdownReason::EngineGone),
        Verdict::EventIdJump
    );
    assert_eq!(bench.heartbeat(u64::MAX), Verdict::EventIdJump);
    assert_eq!(bench.part(one_part(4 + JUMP, &[1])), Verdict::EventIdJump);
    assert_eq!(known(&bench), (4, 4, SequencerState::Whole));
    assert_eq!(bench.events(5, 1), Verdict::Applied);
    assert_eq!(bench.tick(1_000_000), TickOutcome::Nothing);
    // This far, it may have been a long absence.
    assert_eq!(bench.heartbeat(5 + (1 << 38)), Verdict::HeldBack);
}

#[test]
fn an_epoch_first_seen_by_a_jump_is_whole_with_its_snapshot() {
    for by_events in [true, false] {
        let mut bench = Bench::new();
        let first = if by_events {
            bench.events(JUMP, 2)
        } else {
            bench.heartbeat(JUMP)
        };
        assert_eq!(first, Verdict::HeldBack);
        assert_eq!(bench.events(9, 1), Verdict::HeldBack);
        assert_eq!(bench.part(one_part(7, &[1, 2])), Verdict::Applied);
        assert_eq!(bench.sequencer.known(), 9);
        assert_eq!(bench.events(8, 1), Verdict::Applied);
        assert_eq!(known(&bench), (9, 9, SequencerState::Whole));
    }
}
