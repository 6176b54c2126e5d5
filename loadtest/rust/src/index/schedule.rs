//! The times at which records are due: a stream's timeline, compressed into a window.

use std::time::Instant;

/// Maps a stream's times to nanoseconds from the start of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    from_ns: u64,
    span_ns: u64,
    window_ns: u64,
}

impl Schedule {
    /// The times from `from_ns` to `to_ns` become those from 0 to the window; a window of 0: all at once.
    pub fn new(from_ns: u64, to_ns: u64, window_ms: u64) -> Self {
        Self {
            from_ns,
            span_ns: to_ns.saturating_sub(from_ns).max(1),
            window_ns: window_ms * 1_000_000,
        }
    }

    /// Whether records wait for their time.
    pub fn is_paced(&self) -> bool {
        self.window_ns > 0
    }

    /// When a record is due, ns from the start.
    #[inline]
    pub fn due_ns(&self, time_ns: u64) -> u64 {
        let into = u128::from(time_ns.saturating_sub(self.from_ns));
        // At most the window: no time is past the span's end.
        (into * u128::from(self.window_ns) / u128::from(self.span_ns)) as u64
    }
}

/// The time of a trial.
#[derive(Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Zero is now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since then.
    #[inline]
    pub fn ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// Waits in a loop, and lets others run now and then: there may be more threads than cores.
#[derive(Default)]
pub struct Spin(u32);

impl Spin {
    const YIELDS_EVERY: u32 = 64;

    /// One turn of the loop.
    #[inline]
    pub fn turn(&mut self) {
        self.0 += 1;
        if self.0 % Self::YIELDS_EVERY == 0 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeline_is_laid_over_the_window() {
        let pace = Schedule::new(1_000, 5_000, 2);
        assert_eq!(pace.due_ns(1_000), 0);
        assert_eq!(pace.due_ns(3_000), 1_000_000);
        assert_eq!(pace.due_ns(5_000), 2_000_000);
        let day_ns = 86_400_000_000_000;
        assert_eq!(
            Schedule::new(0, day_ns, 60_000).due_ns(day_ns),
            60_000_000_000
        );
        assert_eq!(Schedule::new(0, 9, 0).due_ns(9), 0);
        assert_eq!(Schedule::new(9, 9, 1).due_ns(9), 0);
    }
}
