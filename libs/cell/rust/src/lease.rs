//! Whose publisher still speaks: leases, kept in each log's own time.
//!
//! What makes a worker fresh is when its record was appended, against how far its log has come, not
//! when this replica read it: a log read again revives nobody. A log's time is the newest append
//! seen, moved on by the ticks during which the log demonstrably answered; while it does not, its
//! time and so all its leases stand still. One tick moves it by at most half a lease, so that a
//! process that slept does not take its own sleep for the workers' silence.
//!
//! That a log has stopped is known only some time after. What the ticks meanwhile moved it on is
//! taken back ([`Logs::take_back`]), as far as no record was appended in it.
//!
//! The server's clock may have gone on meanwhile. So a log's time is that clock less the time that
//! it stood still: or the first publisher to come back would age all others by the whole outage. No
//! more is taken off than the clock really jumped, for it may have stood still as well.
//!
//! Nor do the two clocks agree: the server's is slower than the ticks', or is set back. A record that
//! was appended after all others is the log's present, so its time is the log's time, though ticks
//! had moved that further. Otherwise what the clocks ever differed by would age all workers for good.

/// Transports of one cell; names beyond the bound share the last place.
pub const TRANSPORTS_MAX: usize = 8;

/// Transports that have no log: what they bring is said in the moment in which it is taken, and the
/// time that it is given is this replica's own.
const WITHOUT_LOG: [&str; 2] = ["grpc", "recovery"];

/// One log's time and what the service reported of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// Its transport's name.
    pub transport: String,
    /// Whether reads answer.
    pub alive: bool,
    /// Records that came through it: as counted here or as reported, whichever is more.
    pub records: u64,
    /// How far behind the head, as reported.
    pub lag_ms: u64,
    /// How far it is applied: the log's identity and the entry.
    pub position: Option<(String, String)>,
    time_ms: u64,
    appended_at_ms: u64, // its newest record, by its own time
    newest_ms: u64,      // the same, by the server's clock
    set_at_ms: u64,
    behind_ms: u64,
    frozen_ms: u64, // of which no jump of the clock has been taken off yet
}

impl Log {
    /// How far its time has come, by its server's clock; none before its first record.
    #[must_use]
    pub fn unix_ms(&self) -> Option<u64> {
        (self.time_ms > 0).then_some(self.time_ms + self.behind_ms)
    }
}

/// All logs of one cell.
#[derive(Clone, Default, Debug)]
pub struct Logs {
    logs: Vec<Log>,
}

impl Logs {
    /// The place of a transport, made if it is new.
    pub fn place(&mut self, transport: &str) -> usize {
        match self.logs.iter().position(|log| log.transport == transport) {
            Some(place) => place,
            None if self.logs.len() == TRANSPORTS_MAX => TRANSPORTS_MAX - 1,
            None => {
                self.logs.push(Log {
                    transport: transport.to_owned(),
                    alive: true,
                    records: 0,
                    lag_ms: 0,
                    position: None,
                    time_ms: 0,
                    appended_at_ms: 0,
                    newest_ms: 0,
                    set_at_ms: 0,
                    behind_ms: 0,
                    frozen_ms: 0,
                });
                self.logs.len() - 1
            }
        }
    }

    /// The place of a transport that has one.
    #[must_use]
    pub fn known_place(&self, transport: &str) -> Option<usize> {
        self.logs.iter().position(|log| log.transport == transport)
    }

    /// An earlier process has read a record that was appended at `appended_ms`. What passed between
    /// that process and now is in the log's clock: its time has stood still since `now_ms` only.
    pub fn resume(&mut self, place: usize, appended_ms: u64, now_ms: u64) {
        let log = &mut self.logs[place];
        log.time_ms = log.time_ms.max(appended_ms);
        log.appended_at_ms = log.time_ms;
        log.newest_ms = log.newest_ms.max(appended_ms);
        log.set_at_ms = now_ms;
    }

    /// Its time had come so far in an earlier process, past its newest record.
    pub fn resume_time(&mut self, place: usize, unix_ms: u64, now_ms: u64) {
        let log = &mut self.logs[place];
        log.time_ms = log.time_ms.max(unix_ms);
        log.set_at_ms = now_ms;
    }

    /// Everything up to `entry` of the log of this identity has been applied.
    pub fn set_position(&mut self, transport: &str, identity: &str, entry: &str) {
        let place = self.place(transport);
        self.logs[place].position = Some((identity.to_owned(), entry.to_owned()));
    }

    /// A record was read that was appended at `appended_ms` by the log's clock: when that was in
    /// the log's time.
    pub fn on_append(&mut self, place: usize, appended_ms: u64, now_ms: u64) -> u64 {
        let log = &mut self.logs[place];
        log.records += 1;
        if log.time_ms > 0 {
            let jump_ms = appended_ms
                .saturating_sub(log.behind_ms)
                .saturating_sub(log.time_ms);
            let absorbed_ms = jump_ms.min(log.frozen_ms);
            log.frozen_ms -= absorbed_ms;
            log.behind_ms += absorbed_ms;
        }
        let mut at_ms = appended_ms.saturating_sub(log.behind_ms);
        if WITHOUT_LOG.contains(&log.transport.as_str()) {
            // Our clock was set back, or was another replica's before.
            at_ms = at_ms.max(log.time_ms);
        }
        log.appended_at_ms = log.appended_at_ms.max(at_ms);
        // What is read again is never newer than all that was read.
        if at_ms > log.time_ms || appended_ms > log.newest_ms {
            log.time_ms = at_ms;
            log.set_at_ms = now_ms;
        }
        log.newest_ms = log.newest_ms.max(appended_ms);
        at_ms
    }

    /// What the service knows of a log.
    pub fn report(&mut self, transport: &str, alive: bool, records: u64, lag_ms: u64) {
        let place = self.place(transport);
        let log = &mut self.logs[place];
        (log.alive, log.lag_ms) = (alive, lag_ms);
        log.records = log.records.max(records);
    }

    /// The log has stopped, and the last that it showed of itself is `unproven_ms` old. To be said
    /// once for every stop, with the report that it is not alive.
    pub fn take_back(&mut self, transport: &str, unproven_ms: u64) {
        let place = self.place(transport);
        let log = &mut self.logs[place];
        let taken_ms = unproven_ms.min(log.time_ms - log.appended_at_ms);
        log.time_ms -= taken_ms;
        log.frozen_ms = log.frozen_ms.saturating_add(taken_ms);
    }

    /// Time has passed; `any_alive` false freezes all.
    pub fn on_tick(&mut self, now_ms: u64, any_alive: bool, lease_ms: u64) {
        for log in &mut self.logs {
            let passed = now_ms.saturating_sub(log.set_at_ms);
            if log.time_ms == 0 {
                // Nothing has been heard that could grow old.
            } else if any_alive && log.alive {
                log.time_ms = log.time_ms.saturating_add(passed.min(lease_ms / 2));
            } else {
                log.frozen_ms = log.frozen_ms.saturating_add(passed);
            }
            log.set_at_ms = now_ms;
        }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Log] {
        &self.logs
    }
}

/// When a worker was last heard, per log.
#[derive(Clone, Copy, Default, Debug)]
pub struct Heard {
    at_ms: [Option<u64>; TRANSPORTS_MAX],
}

impl Heard {
    /// A record of the worker, appended at `at_ms` of the log's time.
    pub fn note(&mut self, place: usize, at_ms: u64) {
        let last = &mut self.at_ms[place];
        *last = (*last).max(Some(at_ms));
    }

    /// Every log that heard it, by transport, and when last, by the log's clock.
    pub fn marks<'a>(&'a self, logs: &'a Logs) -> impl Iterator<Item = (&'a str, u64)> {
        let marks = self.at_ms.iter().zip(logs.all());
        marks.filter_map(|(heard, log)| {
            heard.map(|at_ms| (log.transport.as_str(), at_ms + log.behind_ms))
        })
    }

    /// How long ago by the log that heard it last; `None` if never.
    #[must_use]
    pub fn age_ms(&self, logs: &Logs) -> Option<u64> {
        let ages = self
            .at_ms
            .iter()
            .zip(logs.all())
            .filter_map(|(heard, log)| heard.map(|at_ms| log.time_ms.saturating_sub(at_ms)));
        ages.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_MS: u64 = 1_000;

    fn tick(logs: &mut Logs, from_ms: u64, to_ms: u64, alive: bool) {
        for now_ms in (from_ms..=to_ms).step_by(100) {
            logs.on_tick(now_ms, alive, LEASE_MS);
        }
    }

    #[test]
    fn age_grows_with_time_in_which_the_log_answers_and_with_no_other() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        assert_eq!(heard.age_ms(&logs), None);
        let place = logs.place("redis");
        logs.on_append(place, 50_000, 0);
        heard.note(place, 50_000);
        tick(&mut logs, 0, 700, true);
        assert_eq!(heard.age_ms(&logs), Some(700));
        tick(&mut logs, 700, 90_000, false);
        assert_eq!(heard.age_ms(&logs), Some(700));
        tick(&mut logs, 90_100, 90_300, true);
        assert_eq!(heard.age_ms(&logs), Some(1_000));
        logs.report("redis", false, 0, 0);
        tick(&mut logs, 90_400, 95_000, true);
        assert_eq!(heard.age_ms(&logs), Some(1_000));
    }

    #[test]
    fn who_comes_back_first_after_an_outage_ages_nobody() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let place = logs.place("redis");
        let at_ms = logs.on_append(place, 50_000, 0);
        heard.note(place, at_ms);
        tick(&mut logs, 0, 300, true);
        tick(&mut logs, 400, 60_300, false);
        logs.on_append(place, 110_400, 60_350);
        assert_eq!(heard.age_ms(&logs), Some(400));
        tick(&mut logs, 60_400, 61_200, true);
        let age_ms = heard.age_ms(&logs);
        assert_eq!(age_ms, Some(400 + 850));
        // Its own next record is heard, and a replica that takes over knows the log's clock.
        let at_ms = logs.on_append(place, 111_300, 61_250);
        heard.note(place, at_ms);
        assert_eq!(heard.age_ms(&logs), Some(0));
        assert_eq!(heard.marks(&logs).collect::<Vec<_>>(), [("redis", 111_300)]);
    }

    #[test]
    fn a_clock_that_stood_still_with_its_log_is_believed() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let place = logs.place("redis");
        logs.on_append(place, 50_000, 0);
        tick(&mut logs, 0, 60_000, false);
        let at_ms = logs.on_append(place, 50_100, 60_000);
        heard.note(place, at_ms);
        tick(&mut logs, 60_000, 60_900, true);
        assert_eq!(heard.age_ms(&logs), Some(900));
        let at_ms = logs.on_append(place, 51_000, 60_900);
        heard.note(place, at_ms);
        assert_eq!(heard.age_ms(&logs), Some(0));
    }

    #[test]
    fn what_passed_before_a_stop_was_known_is_taken_back_and_the_log_comes_back_as_if_known_at_once()
     {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let place = logs.place("redis");
        let at_ms = logs.on_append(place, 50_000, 0);
        heard.note(place, at_ms);
        tick(&mut logs, 0, 700, true);
        logs.report("redis", false, 1, 0);
        logs.take_back("redis", 500);
        assert_eq!(heard.age_ms(&logs), Some(200));
        tick(&mut logs, 800, 9_700, true);
        assert_eq!(heard.age_ms(&logs), Some(200));
        // It stood still from 200 to 9,700; another worker's record is the first of it.
        logs.report("redis", true, 1, 0);
        logs.on_append(place, 59_800, 9_750);
        assert_eq!(heard.age_ms(&logs), Some(300));
    }

    #[test]
    fn no_more_is_taken_back_than_ticks_moved_since_the_newest_record() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let place = logs.place("redis");
        logs.take_back("redis", 500);
        let at_ms = logs.on_append(place, 50_000, 0);
        heard.note(place, at_ms);
        tick(&mut logs, 0, 300, true);
        logs.on_append(place, 50_600, 600);
        assert_eq!(heard.age_ms(&logs), Some(600));
        tick(&mut logs, 700, 800, true);
        logs.take_back("redis", 5_000);
        assert_eq!(heard.age_ms(&logs), Some(600));
        logs.take_back("redis", 5_000);
        assert_eq!(heard.age_ms(&logs), Some(600));
    }

    #[test]
    fn a_log_read_again_revives_nobody() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let place = logs.place("redis");
        logs.on_append(place, 900_000, 5);
        logs.on_append(place, 10_000, 6);
        heard.note(place, 10_000);
        assert_eq!(heard.age_ms(&logs), Some(890_000));
    }

    #[test]
    fn a_log_that_is_taken_up_again_stands_still_only_from_then_on() {
        let (mut logs, mut dead, mut lives) = (Logs::default(), Heard::default(), Heard::default());
        let place = logs.place("redis");
        logs.resume(place, 50_000, 3_650_000);
        dead.note(place, 50_000);
        // Until its first answer it is not alive.
        tick(&mut logs, 3_650_000, 3_650_200, false);
        let at_ms = logs.on_append(place, 51_000, 3_650_250);
        dead.note(place, at_ms);
        let at_ms = logs.on_append(place, 3_650_100, 3_650_250);
        lives.note(place, at_ms);
        assert_eq!(lives.age_ms(&logs), Some(0));
        assert!(
            dead.age_ms(&logs) >= Some(3_598_000),
            "{:?}",
            dead.age_ms(&logs)
        );
    }

    #[test]
    fn a_clock_that_was_set_back_ages_nobody_once_it_has_caught_up() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let place = logs.place("redis");
        let mut beat = |logs: &mut Logs, appended_ms, now_ms| {
            let at_ms = logs.on_append(place, appended_ms, now_ms);
            heard.note(place, at_ms);
            heard.age_ms(logs)
        };
        beat(&mut logs, 80_000, 0);
        // Its server lets no entry be older than the one before, so its time stands still.
        for now_ms in (100..=30_000).step_by(100) {
            logs.on_tick(now_ms, true, LEASE_MS);
            beat(&mut logs, 80_000, now_ms);
        }
        assert_eq!(beat(&mut logs, 80_100, 30_100), Some(0));
        tick(&mut logs, 30_200, 30_500, true);
        assert_eq!(heard.age_ms(&logs), Some(400));
        logs.take_back("redis", 5_000);
        assert_eq!(heard.age_ms(&logs), Some(0));
    }

    #[test]
    fn what_is_pushed_is_of_now_also_when_our_own_clock_was_set_back() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let place = logs.place("grpc");
        logs.resume(place, 80_000, 20_000);
        heard.note(place, 80_000);
        for now_ms in (20_000..=40_000).step_by(100) {
            logs.on_tick(now_ms, true, LEASE_MS);
            let at_ms = logs.on_append(place, now_ms, now_ms);
            heard.note(place, at_ms);
            assert_eq!(heard.age_ms(&logs), Some(0), "at {now_ms}");
        }
        tick(&mut logs, 40_100, 40_500, true);
        assert_eq!(heard.age_ms(&logs), Some(500));
    }

    #[test]
    fn a_clock_slower_than_ours_ages_nobody() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let place = logs.place("redis");
        for second in 1..=1_000 {
            logs.on_tick(second * 1_000, true, 2 * LEASE_MS);
            let at_ms = logs.on_append(place, 50_000 + second * 990, second * 1_000);
            heard.note(place, at_ms);
            assert_eq!(heard.age_ms(&logs), Some(0), "after {second} s");
        }
    }

    #[test]
    fn a_process_that_slept_takes_half_a_lease_at_most_for_silence() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let place = logs.place("grpc");
        logs.on_append(place, 1_000, 1_000);
        heard.note(place, 1_000);
        logs.on_tick(3_600_000, true, LEASE_MS);
        assert_eq!(heard.age_ms(&logs), Some(500));
    }

    #[test]
    fn the_log_that_heard_a_worker_last_counts() {
        let (mut logs, mut heard) = (Logs::default(), Heard::default());
        let (a, b) = (logs.place("redis"), logs.place("grpc"));
        logs.on_append(a, 8_000, 0);
        logs.on_append(b, 300, 0);
        heard.note(a, 1_000);
        heard.note(b, 200);
        assert_eq!(heard.age_ms(&logs), Some(100));
    }

    #[test]
    fn transports_are_bounded() {
        let mut logs = Logs::default();
        for i in 0..100 {
            assert!(logs.place(&format!("t{i}")) < TRANSPORTS_MAX);
        }
        assert_eq!(logs.all().len(), TRANSPORTS_MAX);
    }
}
