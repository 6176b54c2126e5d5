//! Writing: blocks that worker slots gain or lose.
//!
//! 1. `Index::apply`, below – takes the changes of one call, a window of blocks at a time
//! 2. [`change_reader`] – reads the changes block by block
//! 3. [`window`] – writes a window under one lock, with many probes in flight
//! 4. [`probe_ring`] – the ring buffer of those probes
//!
//! [`crate::table::tier_tables`] and [`crate::table::shard_table`] have what happens at a block's entry.

use crate::index::Index;
use crate::memory::reclamation::Pin;
use crate::sync::relaxed::Ordering::Relaxed;
use crate::table::tier_tables::WriteContext;
use crate::types::{Applied, Change};

pub(crate) mod change_reader;
pub(crate) mod probe_ring;
pub(crate) mod window;

use change_reader::ChangeReader;
use window::Window;

/// Removals after which the epoch is advanced.
const ADVANCE_AFTER: usize = 1024;

impl Index {
    /// Applies changes. Those of one slot take effect as if one after another, in the order given. Changes of retired slots
    /// do nothing.
    ///
    /// `changes` is asked for the next one while others are kept from writing: it must not change the same index itself,
    /// nor wait for a thread that does.
    pub fn apply<'a>(&self, changes: impl IntoIterator<Item = Change<'a>>) -> Applied {
        let pin = self.shared.reclaimer.pin();
        let applied = self.apply_pinned(&mut changes.into_iter(), &pin);
        drop(pin);
        if applied.removed > 0 {
            self.advance_after_removals(applied.removed);
        }
        applied
    }

    /// Advances the epoch after every so many removals, so that their entries may soon take other keys.
    fn advance_after_removals(&self, removed: usize) {
        let removals = &self.shared.counters.removals;
        if removals.fetch_add(removed, Relaxed) + removed >= ADVANCE_AFTER {
            removals.store(0, Relaxed);
            self.shared.reclaimer.try_advance();
        }
    }

    pub(crate) fn apply_pinned<'a>(
        &self,
        changes: &mut dyn Iterator<Item = Change<'a>>,
        pin: &Pin<'_>,
    ) -> Applied {
        let mut applied = Applied::default();
        let context = WriteContext::new(&self.shared, &self.directories, pin);
        let Some(mut reader) = ChangeReader::new(changes) else {
            return applied;
        };
        while reader.is_unfinished() {
            let mut window = Window::new(context, self.shards.lock(), reader.current);
            window.run(&mut reader);
            window.count_changes(&mut applied);
        }
        applied
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::table::tier_tables::TableKind;
    use crate::types::{IndexConfig, SlotId, Tier, WorkerKey};

    fn hashes(from: u64) -> Vec<u64> {
        (from..from + 300)
            .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect()
    }

    fn index_of_one_shard() -> (Index, SlotId) {
        let index = Index::new(IndexConfig {
            shard_bits: 0,
            initial_entries_per_shard: 512,
        });
        let key = WorkerKey {
            worker_id: 1,
            dp_rank: 0,
        };
        let slot = index.allocate(key).unwrap();
        (index, slot)
    }

    fn held_count(index: &Index, slot: SlotId, hashes: &[u64]) -> usize {
        let held = hashes
            .iter()
            .filter(|&&hash| index.holds(slot, Tier::Device, hash));
        held.count()
    }

    #[test]
    fn tombstones_take_other_keys_once_no_reader_can_see_the_old_sets() {
        let (index, slot) = index_of_one_shard();
        index.store(slot, Tier::Device, &hashes(0));
        let before = index.events();
        for round in 0..if cfg!(miri) { 3 } else { 40 } {
            let (old, new) = (hashes(round * 1000), hashes((round + 1) * 1000));
            assert_eq!(index.remove(slot, Tier::Device, &old[10..]), 290);
            for _ in 0..3 {
                assert!(index.shared.reclaimer.try_advance());
            }
            assert_eq!(index.store(slot, Tier::Device, &new[10..]), 290);
            assert_eq!(index.remove(slot, Tier::Device, &old[..10]), 10);
            assert_eq!(index.store(slot, Tier::Device, &new[..10]), 10);
            assert_eq!(held_count(&index, slot, &new), 300);
            assert_eq!(held_count(&index, slot, &old), 0);
        }
        let cleanups = index.events().cleanups - before.cleanups;
        assert!(
            cleanups < 20,
            "{cleanups} clean-ups: tombstones were not reused"
        );
    }

    #[test]
    fn tombstones_keep_their_keys_while_a_reader_may_see_the_old_sets() {
        let (index, slot) = index_of_one_shard();
        index.store(slot, Tier::Device, &hashes(0)[..200]);
        let reader = index.shared.reclaimer.pin();
        index.remove(slot, Tier::Device, &hashes(0)[..200]);
        for _ in 0..9 {
            index.shared.reclaimer.try_advance();
        }
        let key_count = || {
            index.shards.lock_shared().with_shard(0, |tables| {
                tables.table(TableKind::Main).map(|table| table.key_count())
            })
        };
        let before = key_count();
        index.store(slot, Tier::Device, &hashes(5000)[..50]);
        assert_eq!(key_count(), before.map(|keys| keys + 50));
        drop(reader);
    }
}
