//! What happens on the replicas' side of a run: reading, keeping, starting again, and asking publishers.

use kvatlas_cell::WorkerNeed;

use crate::check;
use crate::keeping::State;
use crate::log::Record;
use crate::neighbours;
use crate::plan::Without;
use crate::publisher::Answer;
use crate::record::publisher_at;
use crate::replica::bytes_of;
use crate::world::{Happening, LOOK_MS, World};

/// Between two reads of a log, once the faults have stopped.
const QUIET_READ_MS: u64 = 25;
/// A call to a publisher, one way.
const CALL_MS_MAX: u64 = 60;
/// Between two steps of taking a state; and until a peer's has come.
const STEP_MS_MAX: u64 = 60;

/// An attempt of a recovery on its way.
#[derive(Debug)]
pub(crate) struct Attempt {
    need: WorkerNeed,
    life: u64,
    /// None: the call is on its way; records: its answer is.
    answer: Option<Vec<Record>>,
    asks_snapshot: bool,
}

impl World<'_> {
    pub(crate) fn read(&mut self, replica: usize, log: usize) {
        let busy = self.is_busy();
        if self.replicas[replica].up {
            self.replicas[replica].read(
                log,
                &self.logs[log],
                &self.plan,
                busy,
                &mut self.rng,
                &mut self.report.tally,
                self.now_ms,
            );
        }
        // A replica that is slow for ever need not catch up; after the faults it has no reason to be.
        let read_ms = if busy {
            self.plan.read_ms
        } else {
            QUIET_READ_MS
        };
        let pause_ms = self.rng.between(1, 2 * read_ms);
        self.after(pause_ms, Happening::Read(replica, log));
    }

    // --- states, and what starts from them ---

    pub(crate) fn keep(&mut self, name: usize) {
        let Some(keep_ms) = self.plan.keep_ms else {
            return;
        };
        let mut pause_ms = self.rng.between(1, STEP_MS_MAX);
        let replica = &mut self.replicas[name];
        if replica.up && replica.disk.step(&replica.cell, self.plan.workers as u64) {
            self.report.tally.add("state kept");
            self.tell(|| format!("replica {name} has kept its state"));
            pause_ms = self.rng.between(1, 2 * keep_ms);
        }
        self.after(pause_ms, Happening::Keep(name));
    }

    /// Whoever has no state of its own asks a peer.
    pub(crate) fn start_replica(&mut self, name: usize) {
        let has_own = !self.replicas[name].disk.states.is_empty();
        let peer = (0..self.replicas.len()).find(|&peer| peer != name && self.replicas[peer].up);
        let asks = self.plan.keep_ms.is_some() && !has_own;
        self.arriving[name] = peer
            .filter(|_| asks)
            .and_then(|peer| State::of(&self.replicas[peer].cell));
        let ms = self.rng.between(1, STEP_MS_MAX);
        self.after(ms, Happening::UpReplica(name));
    }

    pub(crate) fn up_replica(&mut self, name: usize) -> Result<(), String> {
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
                Ok(()) if cut => return Err(format!("replica {name} takes half a state for one")),
                Ok(()) => {
                    source = word;
                    break;
                }
                Err(error) if !cut => {
                    return Err(format!("replica {name} refuses a state: {error}"));
                }
                Err(_) => self.report.tally.add("half a state refused"),
            }
        }
        self.replicas[name].disk.states = own;
        self.replicas[name].up = true;
        self.report.tally.add(match source {
            "a state of its own" => "replica started from its own state",
            "a peer's state" => "replica started from a peer's state",
            _ => "replica started from the log alone",
        });
        self.tell(|| format!("replica {name} starts from {source}"));
        Ok(())
    }

    /// Many small workers come to one replica, and take its memory.
    pub(crate) fn bring_neighbours(&mut self, name: usize) {
        if !self.replicas[name].up {
            return;
        }
        self.neighbours += 1;
        let records = neighbours::arrive(self.neighbours, &mut self.rng);
        self.replicas[name].take_pushed(&records, &self.plan, self.now_ms);
        let (bytes, bytes_max) = (
            bytes_of(&self.replicas[name].cell),
            self.plan.memory_bytes_max,
        );
        self.tell(|| format!("the index of replica {name} takes {bytes} bytes of {bytes_max}"));
    }

    /// They go, everywhere: a peer's state may have brought them to another replica, too.
    pub(crate) fn leave_neighbours(&mut self) {
        if self.neighbours == 0 || self.plan.without == Some(Without::Room) {
            return;
        }
        let records = neighbours::leave(self.neighbours);
        for replica in self.replicas.iter_mut().filter(|replica| replica.up) {
            replica.take_pushed(&records, &self.plan, self.now_ms);
        }
    }

    // --- recovery ---

    pub(crate) fn recover(&mut self, replica: usize) {
        self.after(LOOK_MS, Happening::Recover(replica));
        if !self.replicas[replica].may_recover() {
            return;
        }
        let needs = self.replicas[replica].cell.needs(256, None);
        let recovery = &mut self.replicas[replica].recovery;
        for need in recovery.due(needs, &mut self.rng, self.now_ms) {
            self.report.attempts += 1;
            self.tell(|| format!("replica {replica} recovers {need:?}"));
            let asks_snapshot = need.applied >= need.known;
            self.call(
                replica,
                Attempt {
                    need,
                    life: self.lives[replica],
                    answer: None,
                    asks_snapshot,
                },
            );
        }
    }

    fn call(&mut self, replica: usize, attempt: Attempt) {
        self.attempts.push(Some(attempt));
        let ms = self.rng.between(1, CALL_MS_MAX);
        self.after(ms, Happening::Answer(replica, self.attempts.len() - 1));
    }

    /// A call has come to its publisher, or its answer has come back.
    pub(crate) fn go_on(&mut self, replica: usize, number: usize) {
        let Some(mut attempt) = self.attempts[number].take() else {
            return;
        };
        if attempt.life != self.lives[replica] || !self.replicas[replica].up {
            return;
        }
        let key = attempt.need.key;
        let is_lost = self.is_busy() && self.rng.chance(self.plan.lost_answer_per_mille);
        let Some(records) = attempt.answer.take() else {
            match self.ask(&attempt) {
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
                    self.report.tally.add_many("answer lost", lost.into());
                    self.end_attempt(replica, key);
                }
            }
            return;
        };
        self.replicas[replica].take_answer(&records, &self.plan, self.now_ms);
        let lacks = self.replicas[replica].cell.need_of(key).is_some();
        if lacks && !attempt.asks_snapshot {
            attempt.asks_snapshot = true;
            self.call(replica, attempt);
        } else {
            self.end_attempt(replica, key);
        }
    }

    fn ask(&mut self, attempt: &Attempt) -> Answer {
        let need = &attempt.need;
        let named = publisher_at(&need.publisher_rpc);
        let Some(publisher) = named.and_then(|name| self.publishers.get_mut(name)) else {
            return Answer::Unreachable;
        };
        if !publisher.up || publisher.left {
            Answer::Unreachable
        } else if attempt.asks_snapshot {
            publisher.snapshot(&self.plan)
        } else {
            publisher.replay(need.epoch, need.applied + 1, &self.plan)
        }
    }

    fn end_attempt(&mut self, replica: usize, key: kvatlas_index::WorkerKey) {
        let recovery = &mut self.replicas[replica].recovery;
        recovery.ended(key, &mut self.rng, self.now_ms);
    }

    pub(crate) fn probe(&mut self, replica: usize) -> Result<(), String> {
        self.after(LOOK_MS, Happening::Probe(replica));
        check::unmistaken(&self.replicas[replica], replica)?;
        check::modest(&self.replicas[replica], replica)?;
        if !self.replicas[replica].is_ready() {
            return Ok(());
        }
        let block = self.rng.below(self.tree.len());
        let voices = (&self.engines[..], &self.publishers[..]);
        let tree = &self.tree;
        check::credits(&mut self.replicas[replica], replica, voices, tree, block)
    }
}
