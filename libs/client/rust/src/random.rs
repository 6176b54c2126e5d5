//! Random numbers for jitter: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", 2014). Any two seeds give sequences that differ, which is all that jitter needs.

/// A sequence of random numbers that its seed determines.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number of the sequence.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a share that is at least 0.5 and below 1, by which a pause is jittered.
    pub fn jitter(&mut self) -> f64 {
        0.5 + (self.next() >> 11) as f64 / (1u64 << 54) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_takes_up_to_half_away() {
        let mut random = Random::new(0);
        let shares: Vec<f64> = (0..1_000).map(|_| random.jitter()).collect();
        assert!(shares.iter().all(|share| (0.5..1.0).contains(share)));
        assert!(shares.iter().any(|share| *share < 0.51));
        assert!(shares.iter().any(|share| *share > 0.99));
    }
}
