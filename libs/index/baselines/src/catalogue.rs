//! All designs by name, so that suites and benchmarks leave none out.

use kvatlas_index::IndexConfig;

use crate::design::{Matching, PrefixIndex};
use crate::designs::concurrent_radix::ConcurrentRadix;
use crate::designs::flat::Flat;
use crate::designs::host_bitmaps::HostBitmaps;
use crate::designs::inverted::InvertedIndex;
use crate::designs::nested_dict::NestedDict;
use crate::designs::positional::Positional;
use crate::designs::radix::RadixTree;
use crate::sharing::actor::Actor;
use crate::sharing::locked::Locked;
use crate::sharing::sticky::{Inline, Sticky};

/// Positions that the positional index skips, as in the published comparison.
pub const JUMP: usize = 8;

/// Writer threads of the designs that have some.
pub const WRITERS: usize = 2;

/// One design.
#[derive(Clone, Copy)]
pub struct Design {
    /// Name in tables.
    pub name: &'static str,
    /// Makes an empty index.
    pub make: fn() -> Box<dyn PrefixIndex>,
    /// Whether its answers are exact; if not, it is in the form in which it was published.
    pub exact: bool,
    /// Whether writes go to another thread, and only `settle` waits for them.
    pub queued: bool,
}

const fn exact(name: &'static str, make: fn() -> Box<dyn PrefixIndex>) -> Design {
    Design {
        name,
        make,
        exact: true,
        queued: false,
    }
}

const fn queued(name: &'static str, make: fn() -> Box<dyn PrefixIndex>) -> Design {
    Design {
        name,
        make,
        exact: true,
        queued: true,
    }
}

const fn inexact(name: &'static str, make: fn() -> Box<dyn PrefixIndex>) -> Design {
    Design {
        name,
        make,
        exact: false,
        queued: false,
    }
}

/// All designs, in the order in which they were published, the flat index last.
pub const DESIGNS: &[Design] = &[
    exact("nested dictionaries", || {
        Box::new(Locked::new(NestedDict::new(Matching::Verified)))
    }),
    inexact("nested dictionaries, unverified", || {
        Box::new(Locked::new(NestedDict::new(Matching::Published)))
    }),
    queued("nested dictionaries, actor", || {
        Box::new(Actor::new(NestedDict::new(Matching::Verified)))
    }),
    exact("inverted index", || {
        Box::new(InvertedIndex::new(Matching::Verified))
    }),
    inexact("inverted index, unverified", || {
        Box::new(InvertedIndex::new(Matching::Published))
    }),
    exact("radix tree", || Box::new(Locked::new(RadixTree::default()))),
    queued("radix tree, actor", || {
        Box::new(Actor::new(RadixTree::default()))
    }),
    exact("concurrent radix tree", || {
        Box::new(Inline::new(ConcurrentRadix::default()))
    }),
    queued("concurrent radix tree, sticky", || {
        Box::new(Sticky::new(ConcurrentRadix::default(), WRITERS))
    }),
    exact("positional, jump 8", || {
        Box::new(Inline::new(Positional::new(JUMP, Matching::Verified)))
    }),
    inexact("positional, jump 8, unverified", || {
        Box::new(Inline::new(Positional::new(JUMP, Matching::Published)))
    }),
    queued("positional, jump 8, sticky", || {
        Box::new(Sticky::new(
            Positional::new(JUMP, Matching::Verified),
            WRITERS,
        ))
    }),
    exact("host bitmaps", || Box::new(HostBitmaps::default())),
    exact("flat index", || Box::new(Flat::new(IndexConfig::default()))),
];

/// The design of that name.
#[must_use]
pub fn named(name: &str) -> Option<Design> {
    DESIGNS.iter().find(|design| design.name == name).copied()
}
