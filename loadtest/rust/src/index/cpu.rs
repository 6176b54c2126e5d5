//! Samples this thread's processor time: the cost of applying a block, even on a busy machine.
//!
//! `unsafe` here: a system call for the time. It is sound because the call writes only to the place that
//! it is given. The test below compares it with the wall clock.

/// Processor time that this thread has used, ns.
pub fn thread_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time to the place given, which is of that type.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Time and the blocks that it was spent on.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Meter {
    ns: u64,
    blocks: u64,
}

impl Meter {
    /// Adds another's.
    pub fn take(&mut self, other: Self) {
        self.ns += other.ns;
        self.blocks += other.blocks;
    }

    /// ns a block; `None` if nothing was sampled.
    pub fn ns_per_block(self) -> Option<f64> {
        (self.blocks > 0).then(|| self.ns as f64 / self.blocks as f64)
    }
}

/// Times every seventeenth event: the clock costs a system call, a tenth of an event. An odd number, since
/// removes and stores take turns where caches are full.
pub struct Sampler {
    seen: u32,
    /// The time that an empty measurement takes.
    empty_ns: u64,
}

impl Sampler {
    const EVERY: u32 = 17;

    /// Finds out what timing itself takes.
    pub fn calibrated() -> Self {
        let empty = (0..64).map(|_| {
            let before = thread_ns();
            thread_ns() - before
        });
        Self {
            seen: 0,
            empty_ns: empty.min().unwrap_or(0),
        }
    }

    /// The time before an event, if this one is timed.
    pub fn begin(&mut self) -> Option<u64> {
        self.seen += 1;
        (self.seen % Self::EVERY == 0).then(thread_ns)
    }

    /// Ends the event, which had this number of blocks.
    pub fn end(&self, began: Option<u64>, blocks: usize, meter: &mut Meter) {
        if let Some(began) = began {
            meter.ns += (thread_ns() - began).saturating_sub(self.empty_ns);
            meter.blocks += blocks as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_thread_uses_no_more_processor_than_there_is_time() {
        let (wall, before) = (Instant::now(), thread_ns());
        let mut sum = 0u64;
        while thread_ns() == before {
            sum = std::hint::black_box(sum + 1);
        }
        let used = thread_ns() - before;
        assert!(used > 0 && used <= wall.elapsed().as_nanos() as u64 + 20_000_000);
    }

    #[test]
    fn a_seventeenth_of_the_events_is_metered() {
        let mut sampler = Sampler::calibrated();
        let mut meter = Meter::default();
        assert_eq!(meter.ns_per_block(), None);
        for _ in 0..170 {
            let sample = sampler.begin();
            sampler.end(sample, 3, &mut meter);
        }
        assert_eq!(meter.blocks, 30);
    }
}
