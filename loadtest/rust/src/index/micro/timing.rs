//! Times calls with hot and with cold processor caches.

use std::hint::black_box;
use std::time::Instant;

/// More than the private caches of a core.
const FLUSH_BYTES: usize = 48 << 20;
const LINE_BYTES: usize = 64;
/// Hot calls between two readings of the clock.
const HOT_CALLS: u32 = 32;

/// Memory whose reading evicts everything else from the caches.
pub struct Flush(Vec<u8>);

impl Flush {
    /// Allocates the memory.
    pub fn new() -> Self {
        Self(vec![1; FLUSH_BYTES])
    }

    /// Reads all of it.
    pub fn all(&self) {
        let sum = |sum: u64, &byte: &u8| sum.wrapping_add(byte.into());
        black_box(self.0.iter().step_by(LINE_BYTES).fold(0, sum));
    }
}

/// Time of a call that repeats, in ns.
pub fn hot_ns(mut call: impl FnMut()) -> f64 {
    call();
    let start = Instant::now();
    (0..HOT_CALLS).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / f64::from(HOT_CALLS)
}

/// Time of a call whose data is not in the caches, in ns. `another` is a call of the same kind on other
/// data, which brings the code back into the caches.
pub fn cold_ns(flush: &Flush, another: impl FnOnce(), call: impl FnOnce()) -> f64 {
    flush.all();
    another();
    let start = Instant::now();
    call();
    start.elapsed().as_nanos() as f64
}
