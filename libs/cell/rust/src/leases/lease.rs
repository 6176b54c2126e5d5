//! A worker's lease, and when its records were last appended.

use super::logs::{LogIndex, Logs, TRANSPORTS_MAX};

/// The append time of a worker's newest record in each log, in the log's time.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LastHeard {
    at_ms: [Option<u64>; TRANSPORTS_MAX],
}

impl LastHeard {
    /// Notes a record that was appended to `log` at `at_ms` of the log's time.
    pub fn note(&mut self, log: LogIndex, at_ms: u64) {
        let last = &mut self.at_ms[log.number()];
        *last = (*last).max(Some(at_ms));
    }

    /// The transport of each log with a record of the worker, and the append time of the newest one by the log server's
    /// clock.
    pub fn unix_ms_by_transport<'a>(
        &'a self,
        logs: &'a Logs,
    ) -> impl Iterator<Item = (&'a str, u64)> {
        let logs = self.at_ms.iter().zip(logs.all());
        logs.filter_map(|(heard, log)| {
            heard.map(|at_ms| (log.transport.as_str(), log.to_unix_ms(at_ms)))
        })
    }

    /// The age of the newest record in any log; None: there is no record.
    pub fn age_ms(&self, logs: &Logs) -> Option<u64> {
        let logs = self.at_ms.iter().zip(logs.all());
        logs.filter_map(|(heard, log)| heard.map(|at_ms| log.time_ms().saturating_sub(at_ms)))
            .min()
    }
}

/// A worker's lease: it runs while the worker's newest record is no older than `lease_ms` in its log's time.
///
/// Records start it, only ticks end it.
#[derive(Default, Debug)]
pub(crate) struct Lease {
    pub last_record: LastHeard,
    runs: bool,
    /// Whether it has ended while the worker had a set, and has not run since.
    has_ended: bool,
}

impl Lease {
    pub fn is_running(&self) -> bool {
        self.runs
    }

    /// Starts the lease if the newest record is fresh. True: it had ended before, and runs again.
    pub fn renew(&mut self, logs: &Logs, lease_ms: u64) -> bool {
        if self.runs || !self.is_fresh(logs, lease_ms) {
            return false;
        }
        self.runs = true;
        std::mem::take(&mut self.has_ended)
    }

    /// Ends the lease if the newest record is too old. True: it ends now, and the worker has a set.
    pub fn on_tick(&mut self, logs: &Logs, lease_ms: u64, has_set: bool) -> bool {
        let is_fresh = self.is_fresh(logs, lease_ms);
        let ends = self.runs && !is_fresh && has_set;
        self.has_ended |= ends;
        self.runs &= is_fresh;
        ends
    }

    fn is_fresh(&self, logs: &Logs, lease_ms: u64) -> bool {
        let age_ms = self.last_record.age_ms(logs);
        age_ms.is_some_and(|age_ms| age_ms <= lease_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::logs::TRANSPORTS_MAX;

    const LEASE_MS: u64 = 1_000;

    fn tick(logs: &mut Logs, from_ms: u64, to_ms: u64, alive: bool) {
        for now_ms in (from_ms..=to_ms).step_by(100) {
            logs.on_tick(now_ms, alive, LEASE_MS);
        }
    }

    #[test]
    fn age_grows_only_with_time_in_which_the_log_answers() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        assert_eq!(heard.age_ms(&logs), None);
        let log = logs.open("redis");
        logs.on_append(log, 50_000, 0);
        heard.note(log, 50_000);
        tick(&mut logs, 0, 700, true);
        assert_eq!(heard.age_ms(&logs), Some(700));
        tick(&mut logs, 700, 90_000, false);
        assert_eq!(heard.age_ms(&logs), Some(700));
        tick(&mut logs, 90_100, 90_300, true);
        assert_eq!(heard.age_ms(&logs), Some(1_000));
        logs.set_status("redis", false, 0, 0);
        tick(&mut logs, 90_400, 95_000, true);
        assert_eq!(heard.age_ms(&logs), Some(1_000));
    }

    #[test]
    fn the_first_record_after_an_outage_ages_no_other_worker() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let log = logs.open("redis");
        let at_ms = logs.on_append(log, 50_000, 0);
        heard.note(log, at_ms);
        tick(&mut logs, 0, 300, true);
        tick(&mut logs, 400, 60_300, false);
        logs.on_append(log, 110_400, 60_350);
        assert_eq!(heard.age_ms(&logs), Some(400));
        tick(&mut logs, 60_400, 61_200, true);
        let age_ms = heard.age_ms(&logs);
        assert_eq!(age_ms, Some(400 + 850));
        // Its own next record makes it fresh, and a replica that takes over learns the log's clock.
        let at_ms = logs.on_append(log, 111_300, 61_250);
        heard.note(log, at_ms);
        assert_eq!(heard.age_ms(&logs), Some(0));
        assert_eq!(
            heard.unix_ms_by_transport(&logs).collect::<Vec<_>>(),
            [("redis", 111_300)]
        );
    }

    #[test]
    fn a_server_clock_that_stood_still_with_its_log_is_used_as_it_is() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let log = logs.open("redis");
        logs.on_append(log, 50_000, 0);
        tick(&mut logs, 0, 60_000, false);
        let at_ms = logs.on_append(log, 50_100, 60_000);
        heard.note(log, at_ms);
        tick(&mut logs, 60_000, 60_900, true);
        assert_eq!(heard.age_ms(&logs), Some(900));
        let at_ms = logs.on_append(log, 51_000, 60_900);
        heard.note(log, at_ms);
        assert_eq!(heard.age_ms(&logs), Some(0));
    }

    #[test]
    fn a_rewind_takes_back_the_time_before_a_stop_was_noticed() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let log = logs.open("redis");
        let at_ms = logs.on_append(log, 50_000, 0);
        heard.note(log, at_ms);
        tick(&mut logs, 0, 700, true);
        logs.set_status("redis", false, 1, 0);
        logs.rewind("redis", 500);
        assert_eq!(heard.age_ms(&logs), Some(200));
        tick(&mut logs, 800, 9_700, true);
        assert_eq!(heard.age_ms(&logs), Some(200));
        // The log stood still from 200 to 9,700; the first record after that is another worker's.
        logs.set_status("redis", true, 1, 0);
        logs.on_append(log, 59_800, 9_750);
        assert_eq!(heard.age_ms(&logs), Some(300));
    }

    #[test]
    fn a_rewind_stops_at_the_newest_record() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let log = logs.open("redis");
        logs.rewind("redis", 500);
        let at_ms = logs.on_append(log, 50_000, 0);
        heard.note(log, at_ms);
        tick(&mut logs, 0, 300, true);
        logs.on_append(log, 50_600, 600);
        assert_eq!(heard.age_ms(&logs), Some(600));
        tick(&mut logs, 700, 800, true);
        logs.rewind("redis", 5_000);
        assert_eq!(heard.age_ms(&logs), Some(600));
        logs.rewind("redis", 5_000);
        assert_eq!(heard.age_ms(&logs), Some(600));
    }

    #[test]
    fn a_log_that_is_read_again_revives_no_worker() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let log = logs.open("redis");
        logs.on_append(log, 900_000, 5);
        logs.on_append(log, 10_000, 6);
        heard.note(log, 10_000);
        assert_eq!(heard.age_ms(&logs), Some(890_000));
    }

    #[test]
    fn a_restored_log_stands_still_only_from_the_restart_on() {
        let (mut logs, mut dead, mut live) =
            (Logs::default(), LastHeard::default(), LastHeard::default());
        let log = logs.open("redis");
        logs.restore_append(log, 50_000, 3_650_000);
        dead.note(log, 50_000);
        // It is not alive before its first answer.
        tick(&mut logs, 3_650_000, 3_650_200, false);
        let at_ms = logs.on_append(log, 51_000, 3_650_250);
        dead.note(log, at_ms);
        let at_ms = logs.on_append(log, 3_650_100, 3_650_250);
        live.note(log, at_ms);
        assert_eq!(live.age_ms(&logs), Some(0));
        assert!(
            dead.age_ms(&logs) >= Some(3_598_000),
            "{:?}",
            dead.age_ms(&logs)
        );
    }

    #[test]
    fn a_server_clock_that_was_set_back_ages_no_worker_once_it_has_caught_up() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let log = logs.open("redis");
        let mut beat = |logs: &mut Logs, appended_ms, now_ms| {
            let at_ms = logs.on_append(log, appended_ms, now_ms);
            heard.note(log, at_ms);
            heard.age_ms(logs)
        };
        beat(&mut logs, 80_000, 0);
        // The server never dates an entry before the last one, so append times stand still.
        for now_ms in (100..=30_000).step_by(100) {
            logs.on_tick(now_ms, true, LEASE_MS);
            beat(&mut logs, 80_000, now_ms);
        }
        assert_eq!(beat(&mut logs, 80_100, 30_100), Some(0));
        tick(&mut logs, 30_200, 30_500, true);
        assert_eq!(heard.age_ms(&logs), Some(400));
        logs.rewind("redis", 5_000);
        assert_eq!(heard.age_ms(&logs), Some(0));
    }

    #[test]
    fn a_pushed_record_is_fresh_even_if_our_own_clock_was_set_back() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let log = logs.open("grpc");
        logs.restore_append(log, 80_000, 20_000);
        heard.note(log, 80_000);
        for now_ms in (20_000..=40_000).step_by(100) {
            logs.on_tick(now_ms, true, LEASE_MS);
            let at_ms = logs.on_append(log, now_ms, now_ms);
            heard.note(log, at_ms);
            assert_eq!(heard.age_ms(&logs), Some(0), "at {now_ms}");
        }
        tick(&mut logs, 40_100, 40_500, true);
        assert_eq!(heard.age_ms(&logs), Some(500));
    }

    #[test]
    fn a_server_clock_slower_than_ours_ages_no_worker() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let log = logs.open("redis");
        for second in 1..=1_000 {
            logs.on_tick(second * 1_000, true, 2 * LEASE_MS);
            let at_ms = logs.on_append(log, 50_000 + second * 990, second * 1_000);
            heard.note(log, at_ms);
            assert_eq!(heard.age_ms(&logs), Some(0), "after {second} s");
        }
    }

    #[test]
    fn a_process_that_slept_counts_at_most_half_a_lease_as_silence() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let log = logs.open("grpc");
        logs.on_append(log, 1_000, 1_000);
        heard.note(log, 1_000);
        logs.on_tick(3_600_000, true, LEASE_MS);
        assert_eq!(heard.age_ms(&logs), Some(500));
    }

    #[test]
    fn the_log_with_the_newest_record_counts() {
        let (mut logs, mut heard) = (Logs::default(), LastHeard::default());
        let (a, b) = (logs.open("redis"), logs.open("grpc"));
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
            assert!(logs.open(&format!("t{i}")).number() < TRANSPORTS_MAX);
        }
        assert_eq!(logs.all().len(), TRANSPORTS_MAX);
    }
}
