//! The cell's logs: their state as the service reports it, and each log's time, in which leases run.
//!
//! A worker is fresh if its newest record was appended recently, measured by how far its log has come, not by when this
//! replica read the record. So a log that is read again revives no worker.
//!
//! **A log's time** is the append time of its newest record, moved on by ticks while the log answers. While it does not
//! answer, its time stands still, and so do all its leases. One tick moves it by at most half a lease, so that a
//! process that slept does not count its own sleep as the workers' silence.
//!
//! **A log's stop is noticed late.** [`Logs::rewind`] takes back what ticks have added since the log's last sign of life,
//! as far as no record was appended in that time.
//!
//! **The log server's clock may have gone on during a stop.** So a log's time is that clock minus the time that the log
//! stood still. Otherwise the first publisher that comes back would age all others by the whole outage. At most the real
//! jump of the clock is subtracted, since the clock may have stood still, too.
//!
//! **The two clocks disagree.** The server's clock is slower than the ticks', or is set back. A record that was appended
//! after all others is the log's present, so its append time is the log's time, even if ticks had moved that further.
//! Otherwise every difference between the clocks would age all workers for ever.

/// Most transports of one cell. Names beyond this share the last index.
pub const TRANSPORTS_MAX: usize = 8;

/// Transports without a log. The append time of their records is the time at which this replica receives them.
const WITHOUT_LOG: [&str; 2] = ["grpc", "recovery"];

/// The index of a log in [`Logs`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogIndex(usize);

impl LogIndex {
    /// The index as a number below [`TRANSPORTS_MAX`].
    pub fn number(self) -> usize {
        self.0
    }
}

/// One log: the service's reports, and its clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// Name of its transport.
    pub transport: String,
    /// Whether it is alive, as reported.
    pub alive: bool,
    /// Number of its records: counted here or reported, whichever is larger.
    pub records: u64,
    /// Distance from its head in ms, as reported.
    pub lag_ms: u64,
    /// The log's identity and the newest entry that is applied.
    pub position: Option<(String, String)>,
    /// The log's time; 0 before its first record.
    time_ms: u64,
    /// Append time of the newest record, in the log's time.
    newest_append_ms: u64,
    /// Append time of the newest record, by the server's clock.
    newest_append_unix_ms: u64,
    /// This replica's clock when the log's time last changed.
    updated_at_ms: u64,
    /// The server's clock minus the log's time.
    offset_ms: u64,
    /// Time that the log stood still and that no jump of the server's clock has explained yet.
    frozen_ms: u64,
}

impl Log {
    fn new(transport: &str) -> Self {
        Self {
            transport: transport.to_owned(),
            alive: true,
            records: 0,
            lag_ms: 0,
            position: None,
            time_ms: 0,
            newest_append_ms: 0,
            newest_append_unix_ms: 0,
            updated_at_ms: 0,
            offset_ms: 0,
            frozen_ms: 0,
        }
    }

    /// The log's time.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// Converts the log's time to its server's clock.
    pub fn to_unix_ms(&self, at_ms: u64) -> u64 {
        at_ms + self.offset_ms
    }

    /// The log's time by its server's clock; None before its first record.
    #[must_use]
    pub fn unix_ms(&self) -> Option<u64> {
        (self.time_ms > 0).then_some(self.to_unix_ms(self.time_ms))
    }
}

/// All logs of one cell.
#[derive(Clone, Default, Debug)]
pub struct Logs {
    logs: Vec<Log>,
}

impl Logs {
    /// The log of a transport; a new transport gets one.
    pub fn open(&mut self, transport: &str) -> LogIndex {
        LogIndex(match self.find(transport) {
            Some(LogIndex(index)) => index,
            None if self.logs.len() == TRANSPORTS_MAX => TRANSPORTS_MAX - 1,
            None => {
                self.logs.push(Log::new(transport));
                self.logs.len() - 1
            }
        })
    }

    /// The log of a transport, if it has one.
    #[must_use]
    pub fn find(&self, transport: &str) -> Option<LogIndex> {
        let mut logs = self.logs.iter();
        logs.position(|log| log.transport == transport)
            .map(LogIndex)
    }

    /// Restores that an earlier process read a record appended at `appended_ms`. The log's clock went on between that
    /// process and now, so the log's time stands still only from `now_ms` on.
    pub fn restore_append(&mut self, index: LogIndex, appended_ms: u64, now_ms: u64) {
        let log = &mut self.logs[index.0];
        log.time_ms = log.time_ms.max(appended_ms);
        log.newest_append_ms = log.time_ms;
        log.newest_append_unix_ms = log.newest_append_unix_ms.max(appended_ms);
        log.updated_at_ms = now_ms;
    }

    /// Restores the log's time of an earlier process, which may be past its newest record.
    pub fn restore_time(&mut self, index: LogIndex, unix_ms: u64, now_ms: u64) {
        let log = &mut self.logs[index.0];
        log.time_ms = log.time_ms.max(unix_ms);
        log.updated_at_ms = now_ms;
    }

    /// Notes that everything up to `entry` of the log with this identity is applied.
    pub fn set_position(&mut self, transport: &str, identity: &str, entry: &str) {
        let index = self.open(transport);
        self.logs[index.0].position = Some((identity.to_owned(), entry.to_owned()));
    }

    /// Notes a record that was appended at `appended_ms` by the log server's clock. Returns its append time in the log's
    /// time.
    pub fn on_append(&mut self, index: LogIndex, appended_ms: u64, now_ms: u64) -> u64 {
        let log = &mut self.logs[index.0];
        log.records += 1;
        if log.time_ms > 0 {
            let jump_ms = appended_ms
                .saturating_sub(log.offset_ms)
                .saturating_sub(log.time_ms);
            let explained_ms = jump_ms.min(log.frozen_ms);
            log.frozen_ms -= explained_ms;
            log.offset_ms += explained_ms;
        }
        let mut at_ms = appended_ms.saturating_sub(log.offset_ms);
        if WITHOUT_LOG.contains(&log.transport.as_str()) {
            // This replica's clock was set back, or another replica's clock came with a state.
            at_ms = at_ms.max(log.time_ms);
        }
        log.newest_append_ms = log.newest_append_ms.max(at_ms);
        // A record that is read again is never newer than all that was read.
        if at_ms > log.time_ms || appended_ms > log.newest_append_unix_ms {
            log.time_ms = at_ms;
            log.updated_at_ms = now_ms;
        }
        log.newest_append_unix_ms = log.newest_append_unix_ms.max(appended_ms);
        at_ms
    }

    /// Sets what the service reports of a log.
    pub fn set_status(&mut self, transport: &str, alive: bool, records: u64, lag_ms: u64) {
        let index = self.open(transport);
        let log = &mut self.logs[index.0];
        (log.alive, log.lag_ms) = (alive, lag_ms);
        log.records = log.records.max(records);
    }

    /// Takes back time of a log that has stopped and whose last sign of life is `unproven_ms` old. Call it once per
    /// stop, with the report that the log is not alive.
    pub fn rewind(&mut self, transport: &str, unproven_ms: u64) {
        let index = self.open(transport);
        let log = &mut self.logs[index.0];
        let taken_ms = unproven_ms.min(log.time_ms - log.newest_append_ms);
        log.time_ms -= taken_ms;
        log.frozen_ms = log.frozen_ms.saturating_add(taken_ms);
    }

    /// Moves the time of all live logs on. With `any_alive` false, all stand still.
    pub fn on_tick(&mut self, now_ms: u64, any_alive: bool, lease_ms: u64) {
        for log in &mut self.logs {
            let passed = now_ms.saturating_sub(log.updated_at_ms);
            if log.time_ms == 0 {
                // No record was appended yet that could age.
            } else if any_alive && log.alive {
                log.time_ms = log.time_ms.saturating_add(passed.min(lease_ms / 2));
            } else {
                log.frozen_ms = log.frozen_ms.saturating_add(passed);
            }
            log.updated_at_ms = now_ms;
        }
    }

    /// All logs, by their index.
    #[must_use]
    pub fn all(&self) -> &[Log] {
        &self.logs
    }
}
