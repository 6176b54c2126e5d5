//! What kind of run a seed means: sizes, and how often what goes wrong.

use crate::rng::Rng;

/// When the run begins, on the wall clock of nobody in particular.
pub const START_MS: u64 = 1_700_000_000_000;
/// How long a worker may be silent.
pub const LEASE_MS: u64 = 3_000;
/// How long a gap may stay open.
pub const HOLD_BACK_MS: u64 = 800;
/// How long a worker may recover before its set is emptied.
pub const RECOVER_MS: u64 = 4_000;
/// Between two heartbeats.
pub const BEAT_MS: u64 = 700;
/// Between two ticks of a replica.
pub const TICK_MS: u64 = 200;
/// After the faults stop, so long until everything must be healed: the longest pause of a recovery
/// and of a delivery, a lease, a recovery given up, and some.
pub const QUIET_MS: u64 = 14_000;
/// A match may be out of date by so much of the time in which its replica read the log's head: a
/// lease, a gap held back, a gap found by a heartbeat, a delivery's longest pause, a delay.
pub const STALE_MS_MAX: u64 = LEASE_MS + 2 * HOLD_BACK_MS + 2 * BEAT_MS + 2_000;

/// A rule that is switched off, by tampering with what a replica, or a mirror, takes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Without {
    /// What was applied counts as new when it comes again.
    Dedup,
    /// What an older epoch says counts as the current one's.
    Fencing,
    /// What is missing before an event is passed over.
    GapCheck,
    /// A state that was taken while events were applied counts as the effect of all of these.
    Convergence,
    /// What a worker passed over, being out for lack of memory, counts as applied where its state is started from.
    PassingOver,
    /// Half a state counts as a whole one.
    Refusal,
    /// Of neighbours that go nobody hears: there is no room again.
    Room,
    /// A mirror does not hear of what its engine offloads.
    Mirroring,
}

impl Without {
    /// All rules, by name.
    pub const ALL: [(&str, Self); 8] = [
        ("dedup", Self::Dedup),
        ("fencing", Self::Fencing),
        ("gap-check", Self::GapCheck),
        ("convergence", Self::Convergence),
        ("passing-over", Self::PassingOver),
        ("refusal", Self::Refusal),
        ("room", Self::Room),
        ("mirroring", Self::Mirroring),
    ];

    /// The rule of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|&(known, _)| known == name).map(|(_, rule)| rule)
    }
}

/// What shows a run again.
#[must_use]
pub fn replay_command(seed: u64, without: Option<Without>) -> String {
    let mut rules = Without::ALL.into_iter();
    let named = rules.find(|&(_, rule)| Some(rule) == without);
    let flag = named.map_or(String::new(), |(name, _)| format!(" --without {name}"));
    format!("cargo run --release -p kvatlas-simulation -- --seed {seed} --trace{flag}")
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Engines, each with a publisher.
    pub workers: usize,
    /// Replicas.
    pub replicas: usize,
    /// Logs that carry the same records.
    pub logs: usize,
    /// How long things go wrong.
    pub busy_ms: u64,
    /// Between two steps of an engine.
    pub engine_ms: u64,
    /// Between two looks of a publisher at its engine.
    pub follow_ms: u64,
    /// Events of one record.
    pub batch_events: usize,
    /// Hashes of one snapshot part.
    pub part_hashes: usize,
    /// Numbered records that may wait in an outbox.
    pub outbox_records: usize,
    /// Records kept for replays.
    pub replay_records: usize,
    /// Entries a log keeps.
    pub log_records: usize,
    /// Records a replica takes at once, and how long it takes over them: it may be slow.
    pub read_records: usize,
    /// Between two reads.
    pub read_ms: u64,
    /// Publishers push to the replicas, too.
    pub direct: bool,
    /// About how long after a state of a replica is kept the next one is; none: it keeps none.
    pub keep_ms: Option<u64>,
    /// Of the memory that neighbours take, how much there is for them; none: all that they like.
    pub room_per_mille: Option<u64>,
    /// Bytes of the index, when a replica's memory is short.
    pub memory_bytes_max: usize,
    /// Publishers have a state directory.
    pub checkpoints: bool,
    /// Of a thousand records read: lost, come again, come late.
    pub drop_per_mille: u64,
    /// Come again.
    pub duplicate_per_mille: u64,
    /// Come late, and so out of order.
    pub delay_per_mille: u64,
    /// Of a thousand appends, stored and not acknowledged.
    pub lost_ack_per_mille: u64,
    /// Of a thousand answers of a publisher, lost on the way.
    pub lost_answer_per_mille: u64,
    /// Between two larger faults: crashes, outages, lost data.
    pub fault_ms: u64,
    /// Clocks differ by at most so much.
    pub skew_ms: u64,
    /// The broken rule.
    pub without: Option<Without>,
}

impl Plan {
    /// Of a seed. Sizes are small, so that every bound is met.
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
            keep_ms: rng.chance(600).then(|| rng.between(300, 4_000)),
            room_per_mille: rng.chance(300).then(|| rng.between(50, 500)),
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
            without: None,
        }
    }

    /// A clock's difference.
    pub fn skew(&self, rng: &mut Rng) -> i64 {
        rng.between(0, 2 * self.skew_ms) as i64 - self.skew_ms as i64
    }
}
