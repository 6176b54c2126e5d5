//! What storing or removing a block on one tier means for the tables of a shard.
//!
//! The main table says who holds a block anywhere. Aside, and only once some block is held elsewhere
//! than on the device alone, there are four more tables of the same kind: one for each of host, disk
//! and remote, and one of memberships that are in the main table but *not* on the device. So a
//! device-only membership costs nothing beside the main table, and every tier of every membership is known:
//!
//! | held on       | main | host | off device |
//! |---------------|------|------|------------|
//! | device        | yes  |      |            |
//! | device + host | yes  | yes  |            |
//! | host          | yes  | yes  | yes        |
//!
//! All tables of one hash lie in the same shard, which has one writer at a time.

use crate::sync::atomic::Ordering::Relaxed;

use crate::grace::Pin;
use crate::shard_table::{ShardTable, Shared, Target};
use crate::table::Directory;
use crate::types::Tier;

/// The tables a shard has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Anywhere = 0,
    Host = 1,
    Disk = 2,
    Remote = 3,
    OffDevice = 4,
}

impl Kind {
    pub const ALL: [Self; 5] = [
        Self::Anywhere,
        Self::Host,
        Self::Disk,
        Self::Remote,
        Self::OffDevice,
    ];
    const ASIDE: [Self; 3] = [Self::Host, Self::Disk, Self::Remote];

    /// The table of one tier; none for the device, which the main table stands for.
    fn of(tier: Tier) -> Option<Self> {
        match tier {
            Tier::Device => None,
            Tier::Host => Some(Self::Host),
            Tier::Disk => Some(Self::Disk),
            Tier::Remote => Some(Self::Remote),
        }
    }
}

/// One directory per table.
pub(crate) type Directories = [Directory; 5];

/// What one store or remove changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Changed {
    /// On the tier named.
    pub tier: bool,
    /// The block became known, or unknown, as held by the slot at all.
    pub anywhere: bool,
}

pub(crate) const NOTHING: Changed = Changed {
    tier: false,
    anywhere: false,
};

/// All tables of a shard; [`crate::rights`] says who may change them.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Tables {
    // With the first fields of `main` in one cache line, which is all that most changes touch.
    aside: Option<Box<[ShardTable; 4]>>,
    main: ShardTable,
}

/// One block of one worker slot.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub hash: u64,
    pub slot: u16,
}

/// What every change is made with.
#[derive(Clone, Copy)]
pub(crate) struct Writing<'a> {
    pub shared: &'a Shared,
    pub directories: &'a Directories,
    pub pin: &'a Pin<'a>,
    now: u64,
}

impl<'a> Writing<'a> {
    pub fn new(shared: &'a Shared, directories: &'a Directories, pin: &'a Pin<'a>) -> Self {
        Self {
            shared,
            directories,
            pin,
            now: shared.grace.now(),
        }
    }

    #[inline(always)]
    pub fn target(self, kind: Kind) -> Target<'a> {
        Target {
            shared: self.shared,
            directory: &self.directories[kind as usize],
            pin: self.pin,
            now: self.now,
        }
    }
}

impl Tables {
    pub fn table(&self, kind: Kind) -> Option<&ShardTable> {
        match kind {
            Kind::Anywhere => Some(&self.main),
            other => self.aside.as_ref().map(|aside| &aside[other as usize - 1]),
        }
    }

    pub fn table_mut(&mut self, kind: Kind) -> Option<&mut ShardTable> {
        match kind {
            Kind::Anywhere => Some(&mut self.main),
            other => self
                .aside
                .as_mut()
                .map(|aside| &mut aside[other as usize - 1]),
        }
    }

    /// Takes memory for the main table, see [`ShardTable::reserve`].
    pub fn reserve(&mut self, target: Target<'_>, shard: usize) {
        self.main.reserve(target, shard);
    }

    /// The main table, if there is nothing aside to be kept in step with it.
    #[inline(always)]
    pub fn main_alone(&mut self) -> Option<&mut ShardTable> {
        self.aside.is_none().then_some(&mut self.main)
    }

    pub fn store(&mut self, writing: Writing<'_>, m: Member, tier: Tier) -> Changed {
        let Some(kind) = Kind::of(tier) else {
            if self.insert(writing, Kind::Anywhere, m) {
                return Changed {
                    tier: true,
                    anywhere: true,
                };
            }
            return Changed {
                tier: self.delete(writing, Kind::OffDevice, m),
                anywhere: false,
            };
        };
        if !self.insert(writing, kind, m) {
            return NOTHING;
        }
        let anywhere = self.insert(writing, Kind::Anywhere, m);
        if anywhere {
            self.insert(writing, Kind::OffDevice, m);
        }
        Changed {
            tier: true,
            anywhere,
        }
    }

    #[inline]
    pub fn remove(&mut self, writing: Writing<'_>, m: Member, tier: Tier) -> Changed {
        let Some(kind) = Kind::of(tier) else {
            return self.remove_device(writing, m);
        };
        if !self.delete(writing, kind, m) {
            return NOTHING;
        }
        let anywhere = self.has(writing.directories, Kind::OffDevice, m)
            && !self.is_aside(writing.directories, m);
        if anywhere {
            self.delete(writing, Kind::OffDevice, m);
            self.delete(writing, Kind::Anywhere, m);
        }
        Changed {
            tier: true,
            anywhere,
        }
    }

    /// Every hash that `slot` holds on `tier`.
    pub fn held_by(&self, dirs: &Directories, slot: u16, tier: Tier) -> Vec<u64> {
        let kind = Kind::of(tier).unwrap_or(Kind::Anywhere);
        let Some(table) = self.table(kind) else {
            return Vec::new();
        };
        let on_tier = |&hash: &u64| {
            let m = Member { hash, slot };
            kind != Kind::Anywhere || !self.has(dirs, Kind::OffDevice, m)
        };
        let held = table
            .held(&dirs[0].cells)
            .filter(|(_, set)| set.contains(slot));
        held.map(|(hash, _)| hash).filter(on_tier).collect()
    }

    fn remove_device(&mut self, writing: Writing<'_>, m: Member) -> Changed {
        if self.aside.is_some() {
            if self.has(writing.directories, Kind::OffDevice, m) {
                return NOTHING;
            }
            if self.is_aside(writing.directories, m) {
                self.insert(writing, Kind::OffDevice, m);
                return Changed {
                    tier: true,
                    anywhere: false,
                };
            }
        }
        let removed = self.delete(writing, Kind::Anywhere, m);
        Changed {
            tier: removed,
            anywhere: removed,
        }
    }

    fn has(&self, dirs: &Directories, kind: Kind, m: Member) -> bool {
        self.table(kind).is_some_and(|table| {
            table.contains(dirs[0].place(m.hash), m.hash, m.slot, &dirs[0].cells)
        })
    }

    fn is_aside(&self, dirs: &Directories, m: Member) -> bool {
        Kind::ASIDE.into_iter().any(|kind| self.has(dirs, kind, m))
    }

    fn insert(&mut self, writing: Writing<'_>, kind: Kind, m: Member) -> bool {
        let table = match kind {
            Kind::Anywhere => &mut self.main,
            other => {
                let aside = self.aside.get_or_insert_with(|| {
                    let bytes = size_of::<[ShardTable; 4]>();
                    let counters = &writing.shared.counters;
                    counters.aside_bytes.fetch_add(bytes, Relaxed);
                    Box::default()
                });
                &mut aside[other as usize - 1]
            }
        };
        table.insert(writing.target(kind), m.hash, m.slot)
    }

    fn delete(&mut self, writing: Writing<'_>, kind: Kind, m: Member) -> bool {
        self.table_mut(kind)
            .is_some_and(|table| table.remove(writing.target(kind), m.hash, m.slot))
    }
}

/// Whether `slot` holds `hash` on `tier`, without a lock. A look-up of its own, not of one moment with
/// any other: while the block moves between tiers, either answer may come.
pub(crate) fn holds(dirs: &Directories, pin: &Pin<'_>, slot: u16, hash: u64, tier: Tier) -> bool {
    let has = |kind: Kind| {
        dirs[kind as usize]
            .look(hash, pin)
            .is_some_and(|set| set.contains(slot))
    };
    Kind::of(tier).map_or_else(|| has(Kind::Anywhere) && !has(Kind::OffDevice), has)
}
