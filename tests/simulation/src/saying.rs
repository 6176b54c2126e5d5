//! What happens on the publishers' side of a run.

use crate::outlet::Next;
use crate::plan::BEAT_MS;
use crate::publisher::Publisher;
use crate::world::{Happening, World};

impl World<'_> {
    pub(crate) fn work(&mut self, name: usize) {
        if self.is_busy() {
            if self.engines[name].up {
                self.engines[name].work(&self.tree, &mut self.rng, self.now_ms);
            }
            let pause_ms = self.rng.between(1, 2 * self.plan.engine_ms);
            self.after(pause_ms, Happening::Engine(name));
        }
    }

    pub(crate) fn follow(&mut self, name: usize) {
        let publisher = &mut self.publishers[name];
        if publisher.up && !publisher.left {
            let engine = &self.engines[publisher.engine];
            publisher.follow(engine, &self.plan, &self.tree, self.now_ms);
        }
        self.wake(name);
        self.after(self.plan.follow_ms, Happening::Follow(name));
    }

    pub(crate) fn beat(&mut self, name: usize) {
        let publisher = &mut self.publishers[name];
        if publisher.up && !publisher.left {
            publisher.beat(&self.plan);
            publisher.keep(&self.plan);
        }
        self.wake(name);
        self.after(BEAT_MS, Happening::Beat(name));
    }

    /// Deliveries that sleep look again for something to do.
    fn wake(&mut self, name: usize) {
        for place in 0..self.publishers[name].outlets.len() {
            let outlet = &mut self.publishers[name].outlets[place];
            if !std::mem::replace(&mut outlet.awake, true) {
                self.after(1, Happening::Deliver(name, place));
            }
        }
    }

    pub(crate) fn deliver(&mut self, name: usize, place: usize) {
        let busy = self.is_busy();
        let publisher = &mut self.publishers[name];
        if !publisher.up {
            return;
        }
        publisher.seal(&self.plan);
        let loses_ack = busy && self.rng.chance(self.plan.lost_ack_per_mille);
        let snapshot = publisher.snapshot_of_this_moment(&self.plan);
        let outlet = &mut publisher.outlets[place];
        let overflows = outlet.take_overflows();
        let (rng, now_ms) = (&mut self.rng, self.now_ms);
        let next = match outlet.replica {
            None => {
                let before = self.logs[place].head();
                let next = outlet.step(&mut self.logs[place], || snapshot, loses_ack, rng, now_ms);
                self.report.appended += self.logs[place].head().saturating_sub(before);
                next
            }
            Some(replica) => {
                let receiver = &mut self.replicas[replica];
                let plan = &self.plan;
                outlet.step_direct(receiver, || snapshot, loses_ack, plan, rng, now_ms)
            }
        };
        outlet.awake = next != Next::Idle;
        let tally = &mut self.report.tally;
        tally.add_many("acknowledgement lost", u64::from(loses_ack));
        tally.add_many("outbox overflowed", overflows);
        match next {
            Next::Idle => {}
            Next::After(ms) => self.after(ms, Happening::Deliver(name, place)),
            Next::Fenced(epoch) => {
                if publisher.is_fenced_by(epoch) {
                    tally.add("publisher told of its rival");
                    self.tell(|| format!("publisher {name} exits: its rival has epoch {epoch}"));
                } else {
                    self.after(1, Happening::Deliver(name, place));
                }
            }
        }
    }

    pub(crate) fn start_publisher(&mut self, name: usize) {
        let publisher = &mut self.publishers[name];
        if publisher.left {
            return;
        }
        let engine = &self.engines[publisher.engine];
        let kept_all = self.rng.chance(700);
        let lost = (!kept_all && engine.up).then_some((engine.generation, engine.stream.len()));
        publisher.start(lost, &self.plan, &mut self.rng);
        let resumed = publisher.resume(engine, &self.plan, self.now_ms);
        let tally = &mut self.report.tally;
        tally.add_many("publisher without history", u64::from(lost.is_some()));
        tally.add_many("publisher resumed", u64::from(resumed));
        self.tell(|| {
            format!(
                "publisher {name} starts; history lost: {}, resumed: {resumed}",
                lost.is_some()
            )
        });
    }

    /// Another process that speaks for a worker, of the same engine or of one of its own.
    pub(crate) fn start_rival(&mut self, worker: u64) {
        let name = self.publishers.len();
        let shares = self.rng.chance(500);
        let engine = if shares {
            worker as usize
        } else {
            self.engines.push(crate::engine::Engine::new(&mut self.rng));
            self.after(1, Happening::Engine(self.engines.len() - 1));
            self.engines.len() - 1
        };
        let rival = Publisher::new(name, worker, engine, &self.plan, &mut self.rng);
        self.publishers.push(rival);
        self.tell(|| format!("publisher {name} starts as a rival, with engine {engine}"));
        self.start_publisher(name);
        self.begin_publisher(name);
    }
}
