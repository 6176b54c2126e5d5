//! How often each kind of fault and consequence occurred, so that a fault that never occurs is noticed.

use std::collections::BTreeMap;

/// Counts by kind.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    /// Adds one.
    pub fn add(&mut self, kind: &'static str) {
        self.add_many(kind, 1);
    }

    /// Adds `times`.
    pub fn add_many(&mut self, kind: &'static str, times: u64) {
        *self.0.entry(kind).or_default() += times;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        for (&kind, &times) in &other.0 {
            self.add_many(kind, times);
        }
    }

    /// The count of a kind.
    #[must_use]
    pub fn get(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or_default()
    }

    /// All counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(&kind, &times)| (kind, times))
    }
}
