//! Who is asked next, with a clock in hand; then the state machine against a model, at random.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn replicas(count: usize) -> Replicas {
    seeded(count, 1)
}

fn seeded(count: usize, seed: u64) -> Replicas {
    Replicas::new((0..count).map(|i| format!("r{i}:1").into()), seed)
}

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn first(fleet: &Replicas, now: Duration) -> usize {
    fleet.order(now).next().unwrap()
}

fn order(fleet: &Replicas, now: Duration) -> Vec<usize> {
    fleet.order(now).collect()
}

fn failures(fleet: &Replicas) -> Vec<u32> {
    fleet.observed().iter().map(|each| each.failures).collect()
}

#[test]
fn healthy_replicas_take_turns() {
    let fleet = replicas(3);
    let firsts: Vec<usize> = (0..6).map(|_| first(&fleet, at(0.0))).collect();
    assert_eq!(BTreeSet::from_iter(&firsts[..3]).len(), 3);
    assert_eq!(firsts[3..], firsts[..3]);
    let mut all = order(&fleet, at(0.0));
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2]);
}

#[test]
fn clients_begin_at_different_replicas() {
    let firsts = (0..50).map(|seed| first(&seeded(4, seed), at(0.0)));
    assert_eq!(firsts.collect::<BTreeSet<_>>().len(), 4);
}

#[test]
fn a_failed_replica_is_last_until_its_backoff_is_over() {
    let fleet = replicas(3);
    fleet.failed(1, at(10.0), "gone");
    for _ in 0..6 {
        assert_eq!(order(&fleet, at(10.0))[2], 1);
    }
    let later = at(10.0) + BACKOFF_FIRST;
    assert!((0..3).any(|_| first(&fleet, later) == 1));
}

#[test]
fn after_a_backoff_one_call_alone_tries_the_replica() {
    let fleet = replicas(2);
    fleet.failed(1, at(0.0), "gone");
    let tries = (0..8).filter(|_| first(&fleet, BACKOFF_FIRST) == 1);
    assert_eq!(tries.count(), 1);
}

#[test]
fn an_answer_restores_a_replica() {
    let fleet = replicas(2);
    fleet.failed(1, at(0.0), "gone");
    assert_eq!(fleet.observed()[1].last_error.as_deref(), Some("gone"));
    fleet.answered(1);
    let firsts = [first(&fleet, at(0.0)), first(&fleet, at(0.0))];
    assert_eq!(BTreeSet::from(firsts).len(), 2);
    for each in fleet.observed() {
        assert_eq!((each.failures, each.last_error), (0, None));
    }
}

#[test]
fn backoffs_grow_to_their_bound_with_every_failed_try() {
    let fleet = replicas(1);
    let mut now = Duration::ZERO;
    let mut waits = Vec::new();
    for _ in 0..40 {
        first(&fleet, now);
        fleet.failed(0, now, "gone");
        waits.push(fleet.wait(now));
        now += waits[waits.len() - 1];
    }
    assert!((BACKOFF_FIRST / 2..=BACKOFF_FIRST).contains(&waits[0]));
    assert!(waits[3] > waits[0]);
    assert!((BACKOFF_MAX / 2..=BACKOFF_MAX).contains(&waits[39]));
    assert_eq!(failures(&fleet), [40]);
}

#[test]
fn calls_that_fail_together_are_one_failure() {
    let fleet = replicas(2);
    for _ in 0..50 {
        fleet.failed(0, at(0.0), "gone");
    }
    assert_eq!(failures(&fleet), [1, 0]);
    assert_eq!(fleet.wait(at(0.0)), Duration::ZERO);
}

#[test]
fn if_all_have_failed_the_one_whose_backoff_ends_first_is_first() {
    let fleet = replicas(2);
    fleet.failed(1, at(0.0), "gone");
    fleet.failed(0, at(0.05), "gone");
    fleet.failed(0, at(0.2), "gone again");
    assert_eq!(order(&fleet, at(0.2)), [1, 0]);
}

#[test]
fn threads_share_the_turns_fairly() {
    let fleet = replicas(4);
    let taken = std::thread::scope(|scope| {
        let calls = || {
            let mut taken = [0; 4];
            for _ in 0..1_000 {
                taken[first(&fleet, at(0.0))] += 1;
            }
            taken
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(calls)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .fold([0; 4], |sum, each| {
                std::array::from_fn(|i| sum[i] + each[i])
            })
    });
    assert_eq!(taken, [1_000; 4]);
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Pass(Duration),
    Order,
    Answered(usize),
    Failed(usize),
}

fn step(count: usize) -> impl Strategy<Value = Step> {
    let passes = prop_oneof![0..50u64, 0..6_000u64];
    prop_oneof![
        2 => passes.prop_map(|ms| Step::Pass(Duration::from_millis(ms))),
        3 => Just(Step::Order),
        1 => (0..count).prop_map(Step::Answered),
        3 => (0..count).prop_map(Step::Failed),
    ]
}

fn history() -> impl Strategy<Value = (usize, u64, Vec<Step>)> {
    (1..5usize, any::<u64>()).prop_flat_map(|(count, seed)| {
        let steps = vec(step(count), 0..120);
        (Just(count), Just(seed), steps)
    })
}

/// A replica as the rules describe it. The jittered end of a backoff is taken from the replica, once it
/// is known to be within its bounds.
#[derive(Clone, Default)]
struct Model {
    failures: u32,
    probed: bool,
    retry: Duration,
}

impl Model {
    fn waits(&self, now: Duration) -> bool {
        now < self.retry
    }

    fn back_off(&mut self, now: Duration, retry: Duration) -> Result<(), TestCaseError> {
        let longest = at(0.1 * 2f64.powi(self.failures as i32 - 1)).min(at(5.0));
        prop_assert!((now + longest / 2..=now + longest).contains(&retry));
        self.retry = retry;
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_history_keeps_the_rules((count, seed, steps) in history()) {
        let fleet = seeded(count, seed);
        let retry = |replica: usize| fleet.lock().states[replica].retry;
        let mut models = vec![Model::default(); count];
        let mut now = Duration::ZERO;
        for step in steps {
            match step {
                Step::Pass(time) => now += time,
                Step::Order => {
                    let order = order(&fleet, now);
                    let mut all = order.clone();
                    all.sort_unstable();
                    prop_assert_eq!(all, (0..count).collect::<Vec<_>>());
                    let waits = |replica: &usize| models[*replica].waits(now);
                    prop_assert!(order.iter().is_sorted_by_key(waits), "those that wait are last");
                    let waiting = order.iter().filter(|replica| waits(replica));
                    prop_assert!(waiting.is_sorted_by_key(|replica| models[*replica].retry));
                    // If it tries one after a backoff, the next call finds that one in a backoff.
                    let model = &mut models[order[0]];
                    if model.failures > 0 && !model.waits(now) {
                        model.probed = true;
                        model.back_off(now, retry(order[0]))?;
                    }
                }
                Step::Answered(replica) => {
                    fleet.answered(replica);
                    models[replica] = Model::default();
                }
                Step::Failed(replica) => {
                    fleet.failed(replica, now, "gone");
                    let model = &mut models[replica];
                    if model.failures == 0 || model.probed || !model.waits(now) {
                        model.failures += 1;
                        model.probed = false;
                        model.back_off(now, retry(replica))?;
                    }
                }
            }
            for (replica, (each, model)) in fleet.observed().iter().zip(&models).enumerate() {
                prop_assert_eq!(each.failures, model.failures);
                prop_assert_eq!(each.last_error.is_some(), model.failures > 0);
                prop_assert_eq!(retry(replica), model.retry);
            }
            let soonest = models.iter().map(|model| model.retry).min().unwrap();
            prop_assert_eq!(fleet.wait(now), soonest.saturating_sub(now));
        }
    }
}
