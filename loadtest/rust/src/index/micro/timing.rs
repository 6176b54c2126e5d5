//! Calls timed hot and cold.

use std::hint::black_box;
use std::time::Instant;

/// More than the caches that a core has for itself.
const FLUSH_BYTES: usize = 48 << 20;
const LINE_BYTES: usize = 64;
/// Hot calls between two looks at the clock.
const HOT_CALLS: u32 = 32;

/// Memory to read instead of what the caches hold.
pub struct Flush(Vec<u8>);

impl Flush {
    /// Takes the memory.
    pub fn new() -> Self {
        Self(vec![1; FLUSH_BYTES])
    }

    /// Reads all of it.
    pub fn all(&self) {
        let sum = |sum: u64, &byte: &u8| sum.wrapping_add(byte.into());
        black_box(self.0.iter().step_by(LINE_BYTES).fold(0, sum));
    }
}

/// ns of a call that repeats.
pub fn hot_ns(mut call: impl FnMut()) -> f64 {
    call();
    let start = Instant::now();
    (0..HOT_CALLS).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / f64::from(HOT_CALLS)
}

/// ns of a call whose data the caches have lost; `another` is a call of the same kind on other
/// data, which brings the code back.
pub fn cold_ns(flush: &Flush, another: impl FnOnce(), call: impl FnOnce()) -> f64 {
    flush.all();
    another();
    let start = Instant::now();
    call();
    start.elapsed().as_nanos() as f64
}

/// The value in the middle; of none, 0.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
