//! Every design by name, so that suites and benchmarks leave none out.

use kvatlas_index::IndexConfig;

use crate::actor::Actor;
use crate::concurrent_radix::ConcurrentRadix;
use crate::design::{Matching, PrefixIndex};
use crate::exclusive::Locked;
use crate::flat::Flat;
use crate::host_bitmaps::HostBitmaps;
use crate::inverted::InvertedIndex;
use crate::nested_dict::NestedDict;
use crate::positional::Positional;
use crate::radix::RadixTree;
use crate::sticky::{Inline, Sticky};

/// Positions that the positional index skips, as in the published comparison.
pub const JUMP: usize = 8;

/// Writer threads of the designs that have some.
pub const WRITERS: usize = 2;

/// One design.
#[derive(Clone, Copy)]
pub struct Design {
    /// Its name in tables.
    pub name: &'static str,
    /// An empty index of it.
    pub make: fn() -> Box<dyn PrefixIndex>,
    /// Whether its answers are exact; if not, it is the form that was published as such.
    pub exact: bool,
    /// Whether writes go to another thread and are waited for by `settle` only.
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
