//! The actions on the replicas' side of a run: reading logs, saving states, starting, and recovering.

use crate::check;
use crate::memory_pressure;
use crate::plan::Mutation;
use crate::publisher::Answer;
use crate::record::publisher_at;
use crate::recovery::Attempt;
use crate::replica::bytes_of;
use crate::saved_states::State;
use crate::world::{Action, CHECK_MS, World};

/// Mean pause between two reads of a log after the faults.
const QUIET_READ_MS: u64 = 25;
/// Longest time of a call to a publisher, one way.
const CALL_MS_MAX: u64 = 60;
/// Longest pause between two steps of a capture, and longest time until a peer's state arrives.
const STEP_MS_MAX: u64 = 60;

impl World<'_> {
    pub(crate) fn read(&mut self, replica: usize, log: usize) {
        let busy = self.is_busy();
        if self.replicas[replica].is_up {
            self.replicas[replica].read(
                log,
                &self.logs[log],
                &self.plan,
                busy,
                &mut self.rng,
                &mut self.report.counts,
                self.now_ms,
            );
        }
        // After the faults no replica is slow: one that stays slow request not catch up.
        let read_ms = if busy {
            self.plan.read_ms
        } else {
            QUIET_READ_MS
        };
        let pause_ms = self.rng.between(1, 2 * read_ms);
        self.after(pause_ms, Action::Read(replica, log));
    }

    /// Does a step of saving a state, and schedules the next one.
    pub(crate) fn save_state(&mut self, name: usize) {
        let Some(save_ms) = self.plan.save_ms else {
            return;
        };
        let mut pause_ms = self.rng.between(1, STEP_MS_MAX);
        let replica = &mut self.replicas[name];
        if replica.is_up && replica.disk.step(&replica.cell, self.plan.workers as u64) {
            self.report.counts.add("state saved");
            self.trace(|| format!("replica {name} has saved its state"));
            pause_ms = self.rng.between(1, 2 * save_ms);
        }
        self.after(pause_ms, Action::SaveState(name));
    }

    /// Starts a replica; without a state of its own it asks a peer.
    pub(crate) fn start_replica(&mut self, name: usize) {
        let has_own = !self.replicas[name].disk.states.is_empty();
        let peer = (0..self.replicas.len()).find(|&peer| peer != name && self.replicas[peer].is_up);
        let asks = self.plan.save_ms.is_some() && !has_own;
        self.arriving[name] = peer
            .filter(|_| asks)
            .and_then(|peer| State::of(&self.replicas[peer].cell));
        let ms = self.rng.between(1, STEP_MS_MAX);
        self.after(ms, Action::ReplicaUp(name));
    }

    pub(crate) fn bring_replica_up(&mut self, name: usize) -> Result<(), String> {
        let (plan, now_ms) = (&self.plan, self.now_ms);
        let own = std::mem::take(&mut self.replicas[name].disk.states);
        let of_peer = self.arriving[name].take();
        let mut source = "the log alone";
        for (state, word) in own
            .iter()
            .map(|state| (state, "a state of its own"))
            .chain(of_peer.iter().map(|state| (state, "a peer's state")))
        {
            let cut = self.rng.chance(100);
            match self.replicas[name].restore(state, cut, plan, now_ms) {
                Ok(()) if cut => return Err(format!("replica {name} accepts half of a state")),
                Ok(()) => {
                    source = word;
                    break;
                }
                Err(error) if !cut => {
                    return Err(format!("replica {name} refuses a state: {error}"));
                }
                Err(_) => self.report.counts.add("half a state refused"),
            }
        }
        self.replicas[name].disk.states = own;
        self.replicas[name].is_up = true;
        self.report.counts.add(match source {
            "a state of its own" => "replica started from its own state",
            "a peer's state" => "replica started from a peer's state",
            _ => "replica started from the log alone",
        });
        self.trace(|| format!("replica {name} starts from {source}"));
        Ok(())
    }

    /// Brings many small workers to a replica, so that its memory becomes short.
    pub(crate) fn add_memory_pressure(&mut self, name: usize) {
        if !self.replicas[name].is_up {
            return;
        }
        self.pressure_rounds += 1;
        let records = memory_pressure::arrival_records(self.pressure_rounds, &mut self.rng);
        self.replicas[name].apply_pushed(&records, &self.plan, self.now_ms);
        let (bytes, bytes_max) = (
            bytes_of(&self.replicas[name].cell),
            self.plan.memory_bytes_max,
        );
        self.trace(|| format!("the index of replica {name} takes {bytes} bytes of {bytes_max}"));
    }

    /// Removes the small workers everywhere: a peer's state may have brought them to another replica, too.
    pub(crate) fn end_memory_pressure(&mut self) {
        if self.pressure_rounds == 0 || self.plan.mutation == Some(Mutation::Readmission) {
            return;
        }
        let records = memory_pressure::departure_records(self.pressure_rounds);
        for replica in self.replicas.iter_mut().filter(|replica| replica.is_up) {
            replica.apply_pushed(&records, &self.plan, self.now_ms);
        }
    }

    pub(crate) fn recover(&mut self, replica: usize) {
        self.after(CHECK_MS, Action::Recover(replica));
        if !self.replicas[replica].may_recover() {
            return;
        }
        let requests = self.replicas[replica].cell.recovery_requests(256, None);
        let recovery = &mut self.replicas[replica].recovery;
        for request in recovery.due(requests, &mut self.rng, self.now_ms) {
            self.report.attempts += 1;
            self.trace(|| format!("replica {replica} recovers {request:?}"));
            let asks_snapshot = request.applied >= request.known;
            self.call(
                replica,
                Attempt {
                    request,
                    start: self.starts[replica],
                    answer: None,
                    asks_snapshot,
                },
            );
        }
    }

    fn call(&mut self, replica: usize, attempt: Attempt) {
        self.attempts.push(Some(attempt));
        let ms = self.rng.between(1, CALL_MS_MAX);
        self.after(ms, Action::Answer(replica, self.attempts.len() - 1));
    }

    /// Handles a call that has reached its publisher, or an answer that has come back.
    pub(crate) fn on_answer(&mut self, replica: usize, number: usize) {
        let Some(mut attempt) = self.attempts[number].take() else {
            return;
        };
        if attempt.start != self.starts[replica] || !self.replicas[replica].is_up {
            return;
        }
        let key = attempt.request.key;
        let is_lost = self.is_busy() && self.rng.chance(self.plan.lost_answer_per_mille);
        let Some(records) = attempt.answer.take() else {
            match self.call_publisher(&attempt) {
                Answer::Records(records) if !is_lost => {
                    attempt.answer = Some(records);
                    self.call(replica, attempt);
                }
                Answer::Declined if !attempt.asks_snapshot => {
                    attempt.asks_snapshot = true;
                    self.call(replica, attempt);
                }
                answer => {
                    let lost = is_lost && matches!(answer, Answer::Records(_));
                    self.report.counts.add_many("answer lost", lost.into());
                    self.end_attempt(replica, key);
                }
            }
            return;
        };
        self.replicas[replica].apply_answer(&records, &self.plan, self.now_ms);
        let lacks = self.replicas[replica].cell.recovery_request(key).is_some();
        if lacks && !attempt.asks_snapshot {
            attempt.asks_snapshot = true;
            self.call(replica, attempt);
        } else {
            self.end_attempt(replica, key);
        }
    }

    fn call_publisher(&mut self, attempt: &Attempt) -> Answer {
        let request = &attempt.request;
        let named = publisher_at(&request.publisher_rpc);
        let Some(publisher) = named.and_then(|name| self.publishers.get_mut(name)) else {
            return Answer::Unreachable;
        };
        if !publisher.is_up || publisher.has_left {
            Answer::Unreachable
        } else if attempt.asks_snapshot {
            publisher.snapshot(&self.plan)
        } else {
            publisher.replay(request.epoch, request.applied + 1, &self.plan)
        }
    }

    fn end_attempt(&mut self, replica: usize, key: kvatlas_index::WorkerKey) {
        let recovery = &mut self.replicas[replica].recovery;
        recovery.end(key, &mut self.rng, self.now_ms);
    }

    /// Checks the invariants that hold at any time.
    pub(crate) fn check(&mut self, replica: usize) -> Result<(), String> {
        self.after(CHECK_MS, Action::Check(replica));
        check::no_digest_differs(&self.replicas[replica], replica)?;
        check::evicted_claim_nothing(&self.replicas[replica], replica)?;
        if !self.replicas[replica].is_ready() {
            return Ok(());
        }
        let block = self.rng.below(self.tree.len());
        let sources = (&self.engines[..], &self.publishers[..]);
        let tree = &self.tree;
        check::credits_are_true(&mut self.replicas[replica], replica, sources, tree, block)
    }
}
