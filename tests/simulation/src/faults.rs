//! The larger faults of a run: processes killed or stopped, logs that lose data, networks cut.

use crate::plan::START_MS;
use crate::replica::Replica;
use crate::world::{Action, World};

/// Most rival publishers.
const RIVALS_MAX: usize = 2;
/// Longest time under memory pressure before the system kills a replica, if it does.
const SHORT_MS_MAX: u64 = 2_500;

impl World<'_> {
    /// Injects one of the larger faults, and schedules the next one.
    pub(crate) fn inject_fault(&mut self) {
        if !self.is_busy() {
            return;
        }
        let name = self.rng.below(self.publishers.len());
        let engine = self.rng.below(self.engines.len());
        let replica = self.rng.below(self.plan.replicas);
        let log = self.rng.below(self.plan.logs);
        let ms = self.rng.between(1, 6_000).min(self.left_ms());
        match self.rng.below(16) {
            0 | 1 => self.crash_publisher(name, ms),
            2 => self.stop_engine(engine, ms),
            3 => self.restart_engine(engine),
            4..=6 => self.end_replica(replica, ms),
            7 | 8 => {
                self.note("log does not answer", || format!("log {log}, for {ms} ms"));
                self.logs[log].down_until_ms = self.now_ms + ms;
            }
            9 | 10 => {
                let records = self.rng.between(1, 40) as usize;
                self.note("log loses its newest records", || {
                    format!("log {log}, {records}")
                });
                self.logs[log].lose_tail(records);
            }
            11 => {
                self.note("log loses everything", || format!("log {log}"));
                self.logs[log].lose_all();
            }
            12 if self.plan.direct => {
                self.note("replica not reached by publishers", || {
                    format!("replica {replica}, for {ms} ms")
                });
                self.replicas[replica].cut_off_until_ms = self.now_ms + ms;
            }
            12 | 13 if self.plan.memory_per_mille.is_some() => {
                self.note("memory pressure", || format!("replica {replica}"));
                self.add_memory_pressure(replica);
                if self.rng.chance(500) {
                    let pause_ms = self.rng.between(1, SHORT_MS_MAX);
                    self.after(pause_ms, Action::EndReplica(replica));
                }
            }
            14 if self.publishers.len() < self.plan.workers + RIVALS_MAX => {
                let worker = self.rng.below(self.plan.workers) as u64;
                self.note("rival publisher", || format!("worker {worker}"));
                self.start_rival(worker);
            }
            15 => self.end_for_good(name),
            _ => {}
        }
        let pause_ms = self.rng.between(1, 2 * self.plan.fault_ms.min(1 << 40));
        self.after(pause_ms, Action::Fault);
    }

    /// Counts and traces a fault.
    fn note(&mut self, what: &'static str, of: impl FnOnce() -> String) {
        self.report.counts.add(what);
        self.trace(|| format!("{what}: {}", of()));
    }

    fn end_for_good(&mut self, name: usize) {
        let publisher = &mut self.publishers[name];
        if !publisher.is_up || publisher.has_left {
            return;
        }
        if self.rng.chance(300) {
            publisher.leave(&self.plan);
            self.note("publisher leaves", || format!("publisher {name}"));
        } else if self.rng.chance(300) {
            publisher.crash();
            self.note("publisher killed for good", || format!("publisher {name}"));
        }
    }

    fn left_ms(&self) -> u64 {
        (START_MS + self.plan.busy_ms).saturating_sub(self.now_ms)
    }

    fn crash_publisher(&mut self, name: usize, ms: u64) {
        let publisher = &mut self.publishers[name];
        if publisher.is_up && !publisher.has_left {
            publisher.crash();
            self.note("publisher killed", || {
                format!("publisher {name}, for {ms} ms")
            });
            self.after(ms, Action::StartPublisher(name));
        }
    }

    fn stop_engine(&mut self, name: usize, ms: u64) {
        if self.engines[name].is_up {
            self.engines[name].stop(self.now_ms);
            self.note("engine stops", || format!("engine {name}, for {ms} ms"));
            if self.rng.chance(800) {
                self.after(ms, Action::StartEngine(name));
            }
        }
    }

    fn restart_engine(&mut self, name: usize) {
        if self.engines[name].is_up {
            self.note("engine restarts", || format!("engine {name}"));
            self.engines[name].start(self.now_ms);
        }
    }

    /// Kills a replica that is short of memory.
    pub(crate) fn kill_by_system(&mut self, name: usize) {
        if self.is_busy() && self.replicas[name].is_up {
            self.report.counts.add("replica killed by its system");
            let ms = self.rng.between(1, 1_000).min(self.left_ms());
            self.end_replica(name, ms);
        }
    }

    /// Kills or stops a replica; its disk may be lost with it.
    fn end_replica(&mut self, name: usize, ms: u64) {
        if !self.replicas[name].is_up {
            return;
        }
        let in_order = self.plan.save_ms.is_some() && self.rng.chance(300);
        let loses_disk = self.rng.chance(200);
        let next = Replica::start(&self.plan, self.replicas[name].skew_ms());
        let mut ended = std::mem::replace(&mut self.replicas[name], next);
        ended
            .disk
            .close(&ended.cell, in_order, self.plan.workers as u64);
        if !loses_disk {
            self.replicas[name].disk = ended.disk;
        }
        let what = if in_order {
            "replica stops"
        } else {
            "replica killed"
        };
        self.note(what, || {
            format!("replica {name}, for {ms} ms; its disk is lost: {loses_disk}")
        });
        self.starts[name] += 1;
        self.replicas[name].is_up = false;
        self.after(ms, Action::StartReplica(name));
    }
}
