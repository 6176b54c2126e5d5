//! What was done to a run, counted by kind, so that a fault which never happens shows.

use std::collections::BTreeMap;

/// How often each kind of thing happened.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// It happened once more.
    pub fn add(&mut self, what: &'static str) {
        self.add_many(what, 1);
    }

    /// It happened so many times more.
    pub fn add_many(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    /// All that another run counted.
    pub fn merge(&mut self, other: &Self) {
        for (&what, &times) in &other.0 {
            self.add_many(what, times);
        }
    }

    /// How often this happened.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    /// All of it, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(&what, &times)| (what, times))
    }
}
