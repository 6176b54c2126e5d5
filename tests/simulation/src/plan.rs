//! The kind of run that a seed stands for: sizes, and rates of faults.

use crate::rng::Rng;

/// The beginning of the run, on a wall clock without skew.
pub const START_MS: u64 = 1_700_000_000_000;
/// Lease of a worker.
pub const LEASE_MS: u64 = 3_000;
/// Time that a gap may stay open.
pub const HOLD_BACK_MS: u64 = 800;
/// Time that a worker may recover before its set is emptied.
pub const RECOVER_MS: u64 = 4_000;
/// Interval of heartbeats.
pub const BEAT_MS: u64 = 700;
/// Interval of a replica's ticks.
pub const TICK_MS: u64 = 200;
/// Time after the faults until everything must be exact: the longest pauses of a recovery and of a delivery, a lease, a
/// recovery given up, and a margin.
pub const QUIET_MS: u64 = 14_000;
/// Greatest staleness of a match, in time during which its replica read the logs' heads: a lease, a gap held back, a gap
/// found by a heartbeat, a delivery's longest pause, and a delay.
pub const STALE_MS_MAX: u64 = LEASE_MS + 2 * HOLD_BACK_MS + 2 * BEAT_MS + 2_000;

/// A rule that is switched off by changing the input of a replica or a mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// A repeated event counts as new.
    Dedup,
    /// Records of an older epoch count as the current one's.
    Fencing,
    /// Missing events before a batch are ignored.
    GapCheck,
    /// A state that was captured while events were applied counts as the effect of all of them.
    Convergence,
    /// Events that an evicted worker skipped count as applied in a replica that starts from its state.
    SkippedEvents,
    /// Half of a state counts as a whole one.
    IncompleteStates,
    /// The memory pressure never ends, so no evicted worker comes back.
    Readmission,
    /// A mirror does not see what its engine offloads.
    Offloads,
}

impl Mutation {
    /// All rules, by name.
    pub const ALL: [(&str, Self); 8] = [
        ("dedup", Self::Dedup),
        ("fencing", Self::Fencing),
        ("gap-check", Self::GapCheck),
        ("convergence", Self::Convergence),
        ("skipped-events", Self::SkippedEvents),
        ("incomplete-states", Self::IncompleteStates),
        ("readmission", Self::Readmission),
        ("offloads", Self::Offloads),
    ];

    /// The rule of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|&(known, _)| known == name).map(|(_, rule)| rule)
    }
}

/// The command that repeats a run.
#[must_use]
pub fn replay_command(seed: u64, mutation: Option<Mutation>) -> String {
    let mut rules = Mutation::ALL.into_iter();
    let named = rules.find(|&(_, rule)| Some(rule) == mutation);
    let flag = named.map_or(String::new(), |(name, _)| format!(" --without {name}"));
    format!("cargo run --release -p kvatlas-simulation -- --seed {seed} --trace{flag}")
}

/// The sizes and rates of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of engines, each with a publisher.
    pub workers: usize,
    /// Number of replicas.
    pub replicas: usize,
    /// Number of logs; all carry the same records.
    pub logs: usize,
    /// Duration of the faults.
    pub busy_ms: u64,
    /// Mean pause between two steps of an engine.
    pub engine_ms: u64,
    /// Interval at which a publisher follows its engine.
    pub follow_ms: u64,
    /// Events of one record.
    pub batch_events: usize,
    /// Hashes of one snapshot part.
    pub part_hashes: usize,
    /// Numbered records that may wait in an outbox.
    pub outbox_records: usize,
    /// Records that a publisher keeps for replays.
    pub replay_records: usize,
    /// Entries that a log keeps.
    pub log_records: usize,
    /// Records that a replica reads at once.
    pub read_records: usize,
    /// Mean pause between two reads; a replica may be slow.
    pub read_ms: u64,
    /// Whether publishers push to the replicas, too.
    pub direct: bool,
    /// Mean pause between two saved states of a replica; None: it saves none.
    pub save_ms: Option<u64>,
    /// Share of the memory that small workers need which there is, in thousandths; None: there is enough.
    pub memory_per_mille: Option<u64>,
    /// Memory budget of a replica's index.
    pub memory_bytes_max: usize,
    /// Whether publishers have a state directory.
    pub checkpoints: bool,
    /// Lost records, of a thousand read.
    pub drop_per_mille: u64,
    /// Repeated records, of a thousand read.
    pub duplicate_per_mille: u64,
    /// Delayed records, of a thousand read; they come out of order.
    pub delay_per_mille: u64,
    /// Appends that are stored and not acknowledged, of a thousand.
    pub lost_ack_per_mille: u64,
    /// Lost answers of publishers, of a thousand.
    pub lost_answer_per_mille: u64,
    /// Mean pause between two larger faults: crashes, outages, lost data.
    pub fault_ms: u64,
    /// Greatest skew of a clock.
    pub skew_ms: u64,
    /// The rule that is switched off.
    pub mutation: Option<Mutation>,
}

impl Plan {
    /// Draws a plan. Sizes are small, so that every bound is met.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Self {
        let calm = rng.chance(100);
        let mut rate = |max: u64| {
            if calm || rng.chance(300) {
                0
            } else {
                rng.between(1, max)
            }
        };
        let rates = [rate(60), rate(120), rate(120), rate(100), rate(200)];
        Self {
            workers: rng.between(1, 3) as usize,
            replicas: rng.between(1, 2) as usize,
            logs: 1 + usize::from(rng.chance(300)),
            busy_ms: rng.between(5_000, 15_000),
            engine_ms: rng.between(20, 300),
            follow_ms: rng.between(10, 200),
            batch_events: rng.between(1, 6) as usize,
            part_hashes: rng.between(2, 20) as usize,
            outbox_records: rng.between(3, 60) as usize,
            replay_records: rng.between(0, 40) as usize,
            log_records: rng.between(5, 400) as usize,
            read_records: rng.between(2, 60) as usize,
            read_ms: rng.between(20, 300),
            direct: rng.chance(300),
            save_ms: rng.chance(600).then(|| rng.between(300, 4_000)),
            memory_per_mille: rng.chance(300).then(|| rng.between(50, 500)),
            memory_bytes_max: 1 << 30,
            checkpoints: rng.chance(500),
            drop_per_mille: rates[0],
            duplicate_per_mille: rates[1],
            delay_per_mille: rates[2],
            lost_ack_per_mille: rates[3],
            lost_answer_per_mille: rates[4],
            fault_ms: if calm {
                u64::MAX / 4
            } else {
                rng.between(300, 4_000)
            },
            skew_ms: rng.between(0, 240_000),
            mutation: None,
        }
    }

    /// Draws the skew of a clock.
    pub fn skew(&self, rng: &mut Rng) -> i64 {
        rng.between(0, 2 * self.skew_ms) as i64 - self.skew_ms as i64
    }
}
