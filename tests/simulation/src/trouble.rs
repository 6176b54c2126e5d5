//! The larger faults of a run: who is killed, stopped or cut off, and for how long.

use crate::plan::START_MS;
use crate::replica::Replica;
use crate::world::{Happening, World};

impl World<'_> {
    /// One of the larger faults, and when the next one comes.
    pub(crate) fn fail(&mut self) {
        if !self.is_busy() {
            return;
        }
        self.report.faults += 1;
        let worker = self.rng.below(self.plan.workers);
        let replica = self.rng.below(self.plan.replicas);
        let log = self.rng.below(self.plan.logs);
        let ms = self.rng.between(1, 6_000).min(self.left_ms());
        match self.rng.below(13) {
            0 | 1 => self.crash_publisher(worker, ms),
            2 => self.stop_engine(worker, ms),
            3 => self.restart_engine(worker),
            4 | 5 => self.crash_replica(replica, ms),
            6 | 7 => {
                self.tell(|| format!("log {log} does not answer for {ms} ms"));
                self.logs[log].down_until_ms = self.now_ms + ms;
            }
            8 | 9 => {
                let records = self.rng.between(1, 40) as usize;
                self.tell(|| format!("log {log} loses its newest {records} records"));
                self.logs[log].lose_tail(records);
            }
            10 => {
                self.tell(|| format!("log {log} loses everything"));
                self.logs[log].lose_all();
            }
            11 if self.rng.chance(300) => {
                self.tell(|| format!("publisher {worker} leaves"));
                if self.publishers[worker].up && !self.publishers[worker].left {
                    self.publishers[worker].leave(&self.plan, &self.tree);
                }
            }
            _ if self.rng.chance(300) => {
                self.tell(|| format!("publisher {worker} is killed for good"));
                self.publishers[worker].crash();
            }
            _ => {}
        }
        let pause_ms = self.rng.between(1, 2 * self.plan.fault_ms.min(1 << 40));
        self.after(pause_ms, Happening::Fault);
    }

    fn left_ms(&self) -> u64 {
        (START_MS + self.plan.busy_ms).saturating_sub(self.now_ms)
    }

    fn crash_publisher(&mut self, worker: usize, ms: u64) {
        let publisher = &mut self.publishers[worker];
        if publisher.up && !publisher.left {
            publisher.crash();
            self.tell(|| format!("publisher {worker} is killed for {ms} ms"));
            self.after(ms, Happening::StartPublisher(worker));
        }
    }

    fn stop_engine(&mut self, worker: usize, ms: u64) {
        if self.engines[worker].up {
            self.engines[worker].stop(self.now_ms);
            self.tell(|| format!("engine {worker} stops for {ms} ms"));
            if self.rng.chance(800) {
                self.after(ms, Happening::StartEngine(worker));
            }
        }
    }

    fn restart_engine(&mut self, worker: usize) {
        if self.engines[worker].up {
            self.tell(|| format!("engine {worker} restarts"));
            self.engines[worker].start(self.now_ms);
        }
    }

    fn crash_replica(&mut self, replica: usize, ms: u64) {
        if self.replicas[replica].up {
            self.tell(|| format!("replica {replica} is killed for {ms} ms"));
            let skew_ms = self.replicas[replica].skew_ms();
            self.lives[replica] += 1;
            self.replicas[replica] = Replica::start(&self.plan, skew_ms);
            self.replicas[replica].up = false;
            self.after(ms, Happening::StartReplica(replica));
        }
    }
}
