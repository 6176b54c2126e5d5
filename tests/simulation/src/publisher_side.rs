//! The actions on the publishers' side of a run.

use crate::delivery::Next;
use crate::plan::BEAT_MS;
use crate::publisher::Publisher;
use crate::world::{Action, World};

impl World<'_> {
    pub(crate) fn work(&mut self, name: usize) {
        if self.is_busy() {
            if self.engines[name].is_up {
                self.engines[name].work(&self.tree, &mut self.rng, self.now_ms);
            }
            let pause_ms = self.rng.between(1, 2 * self.plan.engine_ms);
            self.after(pause_ms, Action::Engine(name));
        }
    }

    pub(crate) fn follow(&mut self, name: usize) {
        let publisher = &mut self.publishers[name];
        if publisher.is_up && !publisher.has_left {
            let engine = &self.engines[publisher.engine];
            publisher.follow(engine, &self.plan, &self.tree, self.now_ms);
        }
        self.wake(name);
        self.after(self.plan.follow_ms, Action::Follow(name));
    }

    pub(crate) fn send_heartbeat(&mut self, name: usize) {
        let publisher = &mut self.publishers[name];
        if publisher.is_up && !publisher.has_left {
            publisher.send_heartbeat(&self.plan);
            publisher.write_checkpoint(&self.plan);
        }
        self.wake(name);
        self.after(BEAT_MS, Action::Heartbeat(name));
    }

    /// Schedules a step for each delivery that sleeps.
    fn wake(&mut self, name: usize) {
        for index in 0..self.publishers[name].deliveries.len() {
            let delivery = &mut self.publishers[name].deliveries[index];
            if !std::mem::replace(&mut delivery.is_awake, true) {
                self.after(1, Action::Deliver(name, index));
            }
        }
    }

    pub(crate) fn deliver(&mut self, name: usize, index: usize) {
        let busy = self.is_busy();
        let publisher = &mut self.publishers[name];
        if !publisher.is_up {
            return;
        }
        publisher.seal(&self.plan);
        let loses_ack = busy && self.rng.chance(self.plan.lost_ack_per_mille);
        let snapshot = publisher.delivery_snapshot(&self.plan);
        let delivery = &mut publisher.deliveries[index];
        let overflows = delivery.take_overflows();
        let (rng, now_ms) = (&mut self.rng, self.now_ms);
        let next = match delivery.replica {
            None => {
                let before = self.logs[index].head();
                let next =
                    delivery.step(&mut self.logs[index], || snapshot, loses_ack, rng, now_ms);
                self.report.appended += self.logs[index].head().saturating_sub(before);
                next
            }
            Some(replica) => {
                let receiver = &mut self.replicas[replica];
                let plan = &self.plan;
                delivery.step_direct(receiver, || snapshot, loses_ack, plan, rng, now_ms)
            }
        };
        delivery.is_awake = next != Next::Idle;
        let counts = &mut self.report.counts;
        counts.add_many("acknowledgement lost", u64::from(loses_ack));
        counts.add_many("outbox overflowed", overflows);
        match next {
            Next::Idle => {}
            Next::After(ms) => self.after(ms, Action::Deliver(name, index)),
            Next::Fenced(epoch) => {
                if publisher.is_fenced_by(epoch) {
                    counts.add("publisher fenced by its rival");
                    self.trace(|| format!("publisher {name} exits: its rival has epoch {epoch}"));
                } else {
                    self.after(1, Action::Deliver(name, index));
                }
            }
        }
    }

    pub(crate) fn start_publisher(&mut self, name: usize) {
        let publisher = &mut self.publishers[name];
        if publisher.has_left {
            return;
        }
        let engine = &self.engines[publisher.engine];
        let keeps_history = self.rng.chance(700);
        let lost =
            (!keeps_history && engine.is_up).then_some((engine.generation, engine.stream.len()));
        publisher.start(lost, &self.plan, &mut self.rng);
        let resumed = publisher.resume(engine, &self.plan, self.now_ms);
        let counts = &mut self.report.counts;
        counts.add_many("publisher without history", u64::from(lost.is_some()));
        counts.add_many("publisher resumed", u64::from(resumed));
        self.trace(|| {
            format!(
                "publisher {name} starts; history lost: {}, resumed: {resumed}",
                lost.is_some()
            )
        });
    }

    /// Starts a second publisher for a worker, with the same engine or one of its own.
    pub(crate) fn start_rival(&mut self, worker: u64) {
        let name = self.publishers.len();
        let shares = self.rng.chance(500);
        let engine = if shares {
            worker as usize
        } else {
            self.engines.push(crate::engine::Engine::new(&mut self.rng));
            self.after(1, Action::Engine(self.engines.len() - 1));
            self.engines.len() - 1
        };
        let rival = Publisher::new(name, worker, engine, &self.plan, &mut self.rng);
        self.publishers.push(rival);
        self.trace(|| format!("publisher {name} starts as a rival, with engine {engine}"));
        self.start_publisher(name);
        self.begin_publisher(name);
    }
}
