//! The tables of one shard, one for each kind of membership, and the tables that a store or a removal on one tier changes.
//!
//! The main table says who holds a block on any tier. Side tables exist only once some block is held elsewhere than on the
//! device. There is one each for host, disk and remote, and one of memberships that are in the main table but *not* on the
//! device. So a membership on the device alone costs nothing beside the main table, and every tier of every membership is
//! known:
//!
//! | held on       | main | host | off device |
//! |---------------|------|------|------------|
//! | device        | yes  |      |            |
//! | device + host | yes  | yes  |            |
//! | host          | yes  | yes  | yes        |
//!
//! All tables of one hash lie in the same shard, which has one writer at a time.

use crate::memory::reclamation::Pin;
use crate::sync::relaxed::Ordering::Relaxed;
use crate::table::context::{SharedState, TableContext};
use crate::table::directory::Directory;
use crate::table::shard_table::ShardTable;
use crate::types::{Tier, WorkerSlot};

/// The tables that a shard may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TableKind {
    Main = 0,
    Host = 1,
    Disk = 2,
    Remote = 3,
    OffDevice = 4,
}

impl TableKind {
    pub const ALL: [Self; 5] = [
        Self::Main,
        Self::Host,
        Self::Disk,
        Self::Remote,
        Self::OffDevice,
    ];
    const SIDE_TIERS: [Self; 3] = [Self::Host, Self::Disk, Self::Remote];

    /// The side table of a tier; none for the device, for which the main table stands.
    fn of_tier(tier: Tier) -> Option<Self> {
        match tier {
            Tier::Device => None,
            Tier::Host => Some(Self::Host),
            Tier::Disk => Some(Self::Disk),
            Tier::Remote => Some(Self::Remote),
        }
    }
}

/// One directory per kind of table.
pub(crate) type Directories = [Directory; 5];

/// Effect of one store or removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Changed {
    /// The block was stored or removed on the tier named.
    pub tier: bool,
    /// The block became known, or unknown, as held by the slot on any tier.
    pub any_tier: bool,
}

impl Changed {
    pub const NOTHING: Self = Self::both(false);

    /// A change on the tier, while another tier holds the block.
    fn tier_only(tier: bool) -> Self {
        Self {
            tier,
            any_tier: false,
        }
    }

    /// The same for the tier and for any tier.
    #[inline(always)]
    pub const fn both(changed: bool) -> Self {
        Self {
            tier: changed,
            any_tier: changed,
        }
    }
}

/// One block of one worker slot.
#[derive(Clone, Copy)]
pub(crate) struct Membership {
    pub hash: u64,
    pub slot: WorkerSlot,
}

/// Everything that a change needs.
#[derive(Clone, Copy)]
pub(crate) struct WriteContext<'a> {
    pub shared: &'a SharedState,
    pub directories: &'a Directories,
    pub pin: &'a Pin<'a>,
    epoch: u64,
}

impl<'a> WriteContext<'a> {
    pub fn new(shared: &'a SharedState, directories: &'a Directories, pin: &'a Pin<'a>) -> Self {
        Self {
            shared,
            directories,
            pin,
            epoch: shared.reclaimer.epoch(),
        }
    }

    #[inline(always)]
    pub fn table(self, kind: TableKind) -> TableContext<'a> {
        TableContext {
            shared: self.shared,
            directory: &self.directories[kind as usize],
            pin: self.pin,
            epoch: self.epoch,
        }
    }
}

/// All tables of a shard; [`crate::table::shard_locks`] says who may change them.
#[derive(Default)]
#[repr(C)]
pub(crate) struct TierTables {
    // With the first fields of `main` in one cache line, which is all that most changes touch.
    side: Option<Box<[ShardTable; 4]>>,
    main: ShardTable,
}

impl TierTables {
    pub fn table(&self, kind: TableKind) -> Option<&ShardTable> {
        match kind {
            TableKind::Main => Some(&self.main),
            other => self.side.as_ref().map(|side| &side[other as usize - 1]),
        }
    }

    pub fn table_mut(&mut self, kind: TableKind) -> Option<&mut ShardTable> {
        match kind {
            TableKind::Main => Some(&mut self.main),
            other => self.side.as_mut().map(|side| &mut side[other as usize - 1]),
        }
    }

    /// Takes memory for the main table, see [`ShardTable::reserve`].
    pub fn reserve(&mut self, context: TableContext<'_>, shard: usize) {
        self.main.reserve(context, shard);
    }

    /// The main table, if there are no side tables to be kept in step with it.
    #[inline(always)]
    pub fn main_only(&mut self) -> Option<&mut ShardTable> {
        self.side.is_none().then_some(&mut self.main)
    }

    pub fn store(&mut self, context: WriteContext<'_>, m: Membership, tier: Tier) -> Changed {
        let Some(kind) = TableKind::of_tier(tier) else {
            if self.insert(context, TableKind::Main, m) {
                return Changed::both(true);
            }
            return Changed::tier_only(self.delete(context, TableKind::OffDevice, m));
        };
        if !self.insert(context, kind, m) {
            return Changed::NOTHING;
        }
        let any_tier = self.insert(context, TableKind::Main, m);
        if any_tier {
            self.insert(context, TableKind::OffDevice, m);
        }
        Changed {
            tier: true,
            any_tier,
        }
    }

    #[inline]
    pub fn remove(&mut self, context: WriteContext<'_>, m: Membership, tier: Tier) -> Changed {
        let Some(kind) = TableKind::of_tier(tier) else {
            return self.remove_from_device(context, m);
        };
        if !self.delete(context, kind, m) {
            return Changed::NOTHING;
        }
        let any_tier = self.has(context.directories, TableKind::OffDevice, m)
            && !self.is_on_side_tier(context.directories, m);
        if any_tier {
            self.delete(context, TableKind::OffDevice, m);
            self.delete(context, TableKind::Main, m);
        }
        Changed {
            tier: true,
            any_tier,
        }
    }

    fn remove_from_device(&mut self, context: WriteContext<'_>, m: Membership) -> Changed {
        if self.side.is_some() {
            if self.has(context.directories, TableKind::OffDevice, m) {
                return Changed::NOTHING;
            }
            if self.is_on_side_tier(context.directories, m) {
                self.insert(context, TableKind::OffDevice, m);
                return Changed::tier_only(true);
            }
        }
        Changed::both(self.delete(context, TableKind::Main, m))
    }

    /// Every hash that `slot` holds on `tier`.
    pub fn held_by(&self, dirs: &Directories, slot: WorkerSlot, tier: Tier) -> Vec<u64> {
        let kind = TableKind::of_tier(tier).unwrap_or(TableKind::Main);
        let Some(table) = self.table(kind) else {
            return Vec::new();
        };
        let on_tier = |&hash: &u64| {
            let m = Membership { hash, slot };
            kind != TableKind::Main || !self.has(dirs, TableKind::OffDevice, m)
        };
        let held = table
            .held(&dirs[0].spilled)
            .filter(|(_, set)| set.contains(slot));
        held.map(|(hash, _)| hash).filter(on_tier).collect()
    }

    fn has(&self, dirs: &Directories, kind: TableKind, m: Membership) -> bool {
        self.table(kind).is_some_and(|table| {
            table.contains(dirs[0].home_of(m.hash), m.hash, m.slot, &dirs[0].spilled)
        })
    }

    fn is_on_side_tier(&self, dirs: &Directories, m: Membership) -> bool {
        TableKind::SIDE_TIERS
            .into_iter()
            .any(|kind| self.has(dirs, kind, m))
    }

    fn insert(&mut self, context: WriteContext<'_>, kind: TableKind, m: Membership) -> bool {
        let table = match kind {
            TableKind::Main => &mut self.main,
            other => {
                let side = self.side.get_or_insert_with(|| {
                    let bytes = size_of::<[ShardTable; 4]>();
                    let counters = &context.shared.counters;
                    counters.side_table_bytes.fetch_add(bytes, Relaxed);
                    Box::default()
                });
                &mut side[other as usize - 1]
            }
        };
        table.insert(context.table(kind), m.hash, m.slot)
    }

    fn delete(&mut self, context: WriteContext<'_>, kind: TableKind, m: Membership) -> bool {
        self.table_mut(kind)
            .is_some_and(|table| table.remove(context.table(kind), m.hash, m.slot))
    }
}

/// Whether `slot` holds `hash` on `tier`. Takes no lock, and reads the tables one after another: while the block moves
/// between tiers, either answer may come.
pub(crate) fn holds(
    dirs: &Directories,
    pin: &Pin<'_>,
    slot: WorkerSlot,
    hash: u64,
    tier: Tier,
) -> bool {
    let has = |kind: TableKind| {
        dirs[kind as usize]
            .find(hash, pin)
            .is_some_and(|set| set.contains(slot))
    };
    TableKind::of_tier(tier).map_or_else(|| has(TableKind::Main) && !has(TableKind::OffDevice), has)
}
