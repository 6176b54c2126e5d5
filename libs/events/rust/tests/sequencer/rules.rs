//! One sentence of behaviour per test.

use kvatlas_events::sequencer::{
    Incarnation, SequencerState, ShutdownReason, Step, TickOutcome, Verdict,
};

use crate::bench::{Bench, INCARNATION, NOW_MS, snapshot};

#[test]
fn consecutive_batches_are_applied_as_they_come() {
    let mut bench = Bench::new();
    assert_eq!(bench.events(1, 3), Verdict::Applied);
    assert_eq!(bench.events(4, 1), Verdict::Applied);
    assert_eq!(bench.steps[0], Step::Empty);
    assert_eq!(bench.applied(), [(1, 0), (4, 0)]);
    assert_eq!(
        (bench.sequencer.applied(), bench.state()),
        (4, SequencerState::Whole)
    );
}

#[test]
fn what_was_seen_is_dropped_and_of_a_partly_seen_batch_only_the_tail_is_applied() {
    let mut bench = Bench::whole_at(5);
    assert_eq!(bench.events(1, 5), Verdict::Seen);
    assert_eq!(bench.events(5, 1), Verdict::Seen);
    assert_eq!(bench.events(4, 4), Verdict::Applied);
    assert_eq!(bench.applied(), [(4, 2)]);
    assert_eq!(bench.sequencer.applied(), 7);
}

#[test]
fn a_batch_ahead_waits_for_what_is_missing_and_a_short_gap_disturbs_nobody() {
    let mut bench = Bench::whole_at(2);
    assert_eq!(bench.events(7, 2), Verdict::HeldBack);
    assert_eq!(bench.events(5, 2), Verdict::HeldBack);
    assert_eq!(bench.sequencer.held_back_events(), 4);
    assert_eq!(bench.tick(100), TickOutcome::Nothing);
    assert_eq!(bench.state(), SequencerState::Whole);
    assert_eq!(bench.events(3, 2), Verdict::Applied);
    assert_eq!(bench.applied(), [(3, 0), (5, 0), (7, 0)]);
    assert_eq!(bench.tick(10_000), TickOutcome::Nothing);
    assert_eq!(
        (bench.state(), bench.sequencer.held_back_events()),
        (SequencerState::Whole, 0)
    );
}

#[test]
fn a_gap_that_outlasts_the_hold_back_needs_a_snapshot_but_its_late_events_heal_it_too() {
    let mut bench = Bench::whole_at(2);
    bench.events(4, 1);
    assert_eq!(bench.tick(101), TickOutcome::GapTimedOut);
    assert!(bench.sequencer.needs_snapshot());
    assert_eq!(bench.events(3, 1), Verdict::Applied);
    assert_eq!(
        (bench.state(), bench.applied()),
        (SequencerState::Whole, vec![(3, 0), (4, 0)])
    );
}

#[test]
fn a_lost_last_event_shows_in_the_next_heartbeat() {
    let mut bench = Bench::whole_at(2);
    assert_eq!(bench.heartbeat(2), Verdict::Applied);
    assert_eq!(bench.heartbeat(3), Verdict::HeldBack);
    assert_eq!(bench.tick(101), TickOutcome::GapTimedOut);
    assert_eq!(bench.heartbeat(1), Verdict::Seen);
    assert_eq!(bench.state(), SequencerState::Recovering);
}

#[test]
fn too_many_batches_held_back_start_a_recovery_and_the_oldest_is_dropped() {
    let mut bench = Bench::whole_at(1);
    for first in [3, 5, 7] {
        assert_eq!(bench.events(first, 1), Verdict::HeldBack);
    }
    assert_eq!(bench.events(9, 1), Verdict::HeldBackOverflow);
    assert_eq!(
        (bench.state(), bench.sequencer.held_back_events()),
        (SequencerState::Recovering, 3)
    );
    assert_eq!(bench.events(2, 1), Verdict::Applied);
    assert_eq!(
        bench.sequencer.applied(),
        2,
        "event 3 was let go, so nothing after it is applied"
    );
    assert_eq!(bench.state(), SequencerState::Recovering);
}

#[test]
fn a_worker_first_seen_above_event_1_recovers_by_a_snapshot_and_the_tail_that_was_held() {
    let mut bench = Bench::new();
    assert_eq!(bench.events(50, 2), Verdict::HeldBack);
    assert_eq!(bench.state(), SequencerState::Recovering);
    let parts = snapshot(50, &[&[1, 2], &[3]]);
    assert_eq!(bench.part(parts[1].clone()), Verdict::PartTaken);
    assert_eq!(bench.part(parts[0].clone()), Verdict::Applied);
    assert_eq!(bench.replaced(), Some(vec![1, 2, 3]));
    assert_eq!(bench.applied(), [(50, 1)]);
    assert_eq!(
        (bench.sequencer.applied(), bench.state()),
        (51, SequencerState::Whole)
    );
}

#[test]
fn a_snapshot_older_than_what_is_applied_is_ignored_and_a_newer_one_restarts_the_collection() {
    let mut bench = Bench::whole_at(9);
    assert_eq!(
        bench.part(snapshot(8, &[&[1]])[0].clone()),
        Verdict::SnapshotOld
    );
    assert_eq!(
        bench.part(snapshot(9, &[&[1]])[0].clone()),
        Verdict::SnapshotOld
    );
    let (old, new) = (snapshot(20, &[&[1], &[2]]), snapshot(30, &[&[3], &[4]]));
    assert_eq!(bench.part(old[0].clone()), Verdict::PartTaken);
    assert_eq!(bench.part(new[0].clone()), Verdict::PartTaken);
    assert_eq!(bench.part(old[1].clone()), Verdict::SnapshotOld);
    assert_eq!(bench.part(new[1].clone()), Verdict::Applied);
    assert_eq!(bench.replaced(), Some(vec![3, 4]));
    assert_eq!(bench.sequencer.applied(), 30);
}

#[test]
fn a_snapshot_whose_digest_is_wrong_changes_nothing_until_a_right_copy_of_the_part_comes() {
    let mut bench = Bench::new();
    bench.events(5, 1);
    let parts = snapshot(9, &[&[1, 2], &[3]]);
    let mut torn = parts[1].clone();
    torn.hashes = vec![4];
    assert_eq!(bench.part(parts[0].clone()), Verdict::PartTaken);
    assert_eq!(bench.part(torn), Verdict::SnapshotMismatch);
    assert_eq!(
        (bench.replaced(), bench.state()),
        (None, SequencerState::Recovering)
    );
    assert_eq!(bench.part(parts[1].clone()), Verdict::Applied);
    assert_eq!(
        (bench.replaced(), bench.state()),
        (Some(vec![1, 2, 3]), SequencerState::Whole)
    );
}

#[test]
fn a_snapshot_is_bounded_in_parts_and_in_hashes() {
    let mut bench = Bench::new();
    let mut part = snapshot(9, &[&[1]])[0].clone();
    part.parts = u32::MAX;
    assert_eq!(bench.part(part.clone()), Verdict::SnapshotTooLarge);
    part.parts = 2;
    part.hashes = (0..101).collect();
    assert_eq!(bench.part(part), Verdict::SnapshotTooLarge);
}

#[test]
fn epochs_fence() {
    let mut bench = Bench::whole_at(4);
    let older = Incarnation {
        epoch: INCARNATION.epoch - 1,
        instance: 7,
    };
    let rival = Incarnation {
        epoch: INCARNATION.epoch,
        instance: 8,
    };
    let newer = Incarnation {
        epoch: INCARNATION.epoch + 1,
        instance: 9,
    };
    assert_eq!(bench.events_of(older, 5, 1), Verdict::OlderEpoch);
    assert_eq!(bench.events_of(rival, 5, 1), Verdict::RivalInstance);
    assert!(bench.steps.is_empty());
    assert_eq!(bench.events_of(newer, 1, 1), Verdict::Applied);
    assert_eq!(bench.steps[0], Step::Empty);
    assert_eq!(bench.events(5, 1), Verdict::OlderEpoch);
    assert_eq!(bench.sequencer.incarnation(), newer);
}

#[test]
fn an_epoch_more_than_ten_minutes_ahead_of_the_clock_is_refused() {
    let mut bench = Bench::whole_at(4);
    let limit_us = (NOW_MS + 600_000) * 1000;
    let ahead = Incarnation {
        epoch: limit_us + 1000,
        instance: 1,
    };
    assert_eq!(bench.events_of(ahead, 1, 1), Verdict::EpochAhead);
    assert_eq!(bench.sequencer.incarnation(), INCARNATION);
    let near = Incarnation {
        epoch: limit_us,
        instance: 1,
    };
    assert_eq!(bench.events_of(near, 1, 1), Verdict::Applied);
}

#[test]
fn a_shutdown_waits_for_nothing_and_closes_the_epoch() {
    for reason in [ShutdownReason::EngineGone, ShutdownReason::PublisherLeaving] {
        let mut bench = Bench::whole_at(4);
        assert_eq!(bench.close(9, reason), Verdict::Applied);
        assert_eq!(bench.steps, [Step::Close(reason)]);
        assert_eq!(bench.state(), SequencerState::Closed(reason));
        assert_eq!(bench.events(5, 1), Verdict::EpochClosed);
        assert_eq!(bench.heartbeat(9), Verdict::EpochClosed);
        assert_eq!(bench.tick(1_000_000), TickOutcome::Nothing);
    }
}

#[test]
fn a_recovery_that_takes_too_long_empties_the_set_once_and_still_takes_a_snapshot() {
    let mut bench = Bench::whole_at(2);
    bench.events(4, 1);
    bench.tick(101);
    assert_eq!(bench.tick(1_101), TickOutcome::Nothing);
    assert_eq!(bench.tick(1_102), TickOutcome::RecoveryTimedOut);
    assert_eq!(bench.steps, [Step::Empty]);
    assert!(bench.sequencer.given_up());
    assert_eq!(bench.tick(99_999), TickOutcome::Nothing);
    assert_eq!(
        bench.part(snapshot(3, &[&[1]])[0].clone()),
        Verdict::Applied
    );
    assert_eq!(
        (bench.sequencer.applied(), bench.state()),
        (4, SequencerState::Whole)
    );
}

#[test]
fn an_emptied_worker_heals_when_the_log_is_read_again_from_its_first_event() {
    let mut bench = Bench::whole_at(2);
    bench.events(4, 1);
    bench.tick(101);
    bench.tick(1_102);
    assert_eq!(bench.events(1, 2), Verdict::Applied);
    assert_eq!(bench.state(), SequencerState::Recovering);
    assert_eq!(bench.events(3, 1), Verdict::Applied);
    assert_eq!(
        (bench.sequencer.applied(), bench.state()),
        (4, SequencerState::Whole)
    );
}

#[test]
fn a_set_whose_digest_differs_is_left_alone_until_a_snapshot_of_the_same_event_replaces_it() {
    let mut bench = Bench::whole_at(6);
    bench.sequencer.on_digest_mismatch(NOW_MS);
    assert_eq!(bench.events(7, 1), Verdict::HeldBack);
    assert!(bench.applied().is_empty());
    assert_eq!(
        bench.part(snapshot(6, &[&[1]])[0].clone()),
        Verdict::Applied
    );
    assert_eq!(bench.applied(), [(7, 0)]);
    assert_eq!(bench.state(), SequencerState::Whole);
}

#[test]
fn an_epoch_that_opens_with_a_snapshot_is_not_taken_for_one_that_opened_empty() {
    let mut bench = Bench::new();
    let parts = snapshot(0, &[&[1], &[2]]);
    assert_eq!(bench.part(parts[0].clone()), Verdict::PartTaken);
    assert_eq!(bench.events(1, 1), Verdict::HeldBack);
    assert_eq!(bench.part(parts[1].clone()), Verdict::Applied);
    assert_eq!(
        (bench.replaced(), bench.applied()),
        (Some(vec![1, 2]), vec![(1, 0)])
    );
    assert_eq!(
        (bench.sequencer.applied(), bench.state()),
        (1, SequencerState::Whole)
    );
}

#[test]
fn a_gap_of_2_to_the_37_costs_neither_time_nor_memory_and_a_snapshot_heals_it() {
    let mut bench = Bench::whole_at(2);
    let far = 1 << 37;
    assert_eq!(bench.events(far, 5), Verdict::HeldBack);
    assert_eq!(bench.sequencer.held_back_events(), 5);
    assert_eq!(bench.tick(101), TickOutcome::GapTimedOut);
    assert_eq!(
        bench.part(snapshot(far + 2, &[&[1]])[0].clone()),
        Verdict::Applied
    );
    assert_eq!(bench.applied(), [(far, 3)]);
    assert_eq!(bench.sequencer.applied(), far + 4);
}

#[test]
fn an_empty_life_is_whole_from_its_first_heartbeat_and_its_empty_snapshot() {
    let mut bench = Bench::new();
    assert_eq!(bench.heartbeat(0), Verdict::Applied);
    assert_eq!(bench.state(), SequencerState::Whole);
    let mut bench = Bench::new();
    assert_eq!(bench.part(snapshot(0, &[&[]])[0].clone()), Verdict::Applied);
    assert_eq!(
        (bench.replaced(), bench.state()),
        (Some(vec![]), SequencerState::Whole)
    );
}
