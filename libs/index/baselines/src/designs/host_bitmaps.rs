//! Sharded host bitmaps: sequence hash → 256 bits, one per host, searched by bisection.
//!
//! Stands for the data layer of Modular's router (modular.com/blog, "Why LLM Inference Needs a New Kind of
//! Router, Part 2", May 2026; the router is written in Mojo): every block has a fixed-width bitmap of the
//! hosts that hold it. The hosts of a prefix only shrink with depth, so a query bisects the chain for the depths where they
//! change: O(K log N) for K hosts and N blocks. The result is intersected with a mask of live hosts. A host is removed in two
//! phases: first from the mask, so that no answer names it, later from the bitmaps; then its bit may be reused. A query takes
//! the prompt's sequence hashes; here it computes them all before it begins.
//!
//! A group is 256 hosts wide. More workers need several groups, which are queried one after the other. Writers of one block
//! share the lock of its shard.

use parking_lot::{RwLock, RwLockReadGuard};
use rustc_hash::FxHashMap;

use crate::design::{Answer, PrefixIndex};
use crate::parts::chain::{chained, hash_at};
use crate::parts::host_slots::{GROUP, HostGroup, HostSlot, HostSlots, Hosts, for_each};

const SHARD_BITS: u32 = 6;

/// Number of retired hosts that is worth a pass over all bitmaps.
const SWEEP_AT: usize = 32;

type Shard = RwLock<FxHashMap<u64, Hosts>>;

struct Group(Box<[Shard]>);

impl Group {
    fn new() -> Self {
        Self((0..1 << SHARD_BITS).map(|_| Shard::default()).collect())
    }

    fn shard(&self, hash: u64) -> &Shard {
        &self.0[(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SHARD_BITS)) as usize]
    }

    fn hosts(&self, hash: u64) -> Hosts {
        let shard = self.shard(hash).read();
        shard.get(&hash).copied().unwrap_or_default()
    }

    fn sweep(&self, retired: &Hosts) {
        for shard in &self.0 {
            let mut blocks = shard.write();
            blocks.retain(|_, hosts| {
                *hosts = without(hosts, retired);
                !is_empty(hosts)
            });
            blocks.shrink_to_fit();
        }
    }
}

fn both(a: &Hosts, b: &Hosts) -> Hosts {
    std::array::from_fn(|word| a[word] & b[word])
}

fn without(a: &Hosts, b: &Hosts) -> Hosts {
    std::array::from_fn(|word| a[word] & !b[word])
}

fn is_empty(hosts: &Hosts) -> bool {
    *hosts == Hosts::default()
}

#[derive(Default)]
struct State {
    slots: HostSlots,
    groups: Vec<Group>,
}

/// Groups of 256 hosts each.
#[derive(Default)]
pub struct HostBitmaps(RwLock<State>);

impl HostBitmaps {
    /// Shared access to the groups, and the worker's slot.
    fn assigned(&self, worker: u32) -> (RwLockReadGuard<'_, State>, HostSlot) {
        loop {
            let state = self.0.read();
            if let Some(slot) = state.slots.slot_of(worker) {
                return (state, slot);
            }
            drop(state);
            let mut state = self.0.write();
            if state.slots.assign(worker).is_none() {
                if state.slots.retired_count() > 0 {
                    sweep(&mut state);
                } else {
                    state.groups.push(Group::new());
                    state.slots.groups.push(HostGroup::default());
                }
            }
        }
    }
}

/// The second phase of removal, for all hosts that are in the first.
fn sweep(state: &mut State) {
    let State { slots, groups } = state;
    for (number, group) in groups.iter().enumerate() {
        let retired = slots.groups[number].retired;
        if !is_empty(&retired) {
            group.sweep(&retired);
            slots.free_swept(number);
        }
    }
}

/// A bisection of one prompt in one group.
struct Bisection<'a> {
    group: &'a Group,
    owners: &'a [u32],
    hashes: &'a [u64],
    found: &'a mut dyn FnMut(u32, usize),
}

impl Bisection<'_> {
    /// Reports the depth of each of `hosts`, all of which hold block `low`, and none of which holds block `high`.
    fn between(&mut self, low: usize, high: usize, hosts: &Hosts) {
        if high - low == 1 {
            for_each(hosts, |bit| {
                (self.found)(self.owners[usize::from(bit)], high);
            });
            return;
        }
        let middle = low.midpoint(high);
        let held = both(hosts, &self.group.hosts(self.hashes[middle]));
        let rest = without(hosts, &held);
        if !is_empty(&held) {
            self.between(middle, high, &held);
        }
        if !is_empty(&rest) {
            self.between(low, middle, &rest);
        }
    }
}

impl PrefixIndex for HostBitmaps {
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        let (state, slot) = self.assigned(worker);
        let group = &state.groups[slot.group];
        let (word, bit) = (usize::from(slot.bit) / 64, 1 << (slot.bit % 64));
        for (_, hash) in chained(parent, chunks) {
            group.shard(hash).write().entry(hash).or_default()[word] |= bit;
        }
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        let state = self.0.read();
        let Some(slot) = state.slots.slot_of(worker) else {
            return;
        };
        let group = &state.groups[slot.group];
        let (word, bit) = (usize::from(slot.bit) / 64, 1 << (slot.bit % 64));
        for &hash in hashes {
            let mut shard = group.shard(hash).write();
            if let Some(hosts) = shard.get_mut(&hash) {
                hosts[word] &= !bit;
                if is_empty(hosts) {
                    shard.remove(&hash);
                }
            }
        }
    }

    fn clear(&self, worker: u32) {
        let mut state = self.0.write();
        state.slots.retire(worker);
        if state.slots.retired_count() >= SWEEP_AT {
            sweep(&mut state);
        }
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        answer.begin();
        let Some(last) = chunks.len().checked_sub(1) else {
            return;
        };
        hash_at(chunks, &mut answer.hashes, last);
        let state = self.0.read();
        for (group, hosts) in state.groups.iter().zip(&state.slots.groups) {
            let first = both(&group.hosts(answer.hashes[0]), &hosts.alive);
            if is_empty(&first) {
                continue;
            }
            let Answer {
                hashes, matches, ..
            } = &mut *answer;
            let mut bisection = Bisection {
                group,
                owners: &hosts.owners,
                hashes,
                found: &mut |worker, depth| {
                    // Prompts have fewer than 2^32 blocks.
                    let depth = depth as u32;
                    matches.push(crate::design::Match { worker, depth });
                },
            };
            bisection.between(0, chunks.len(), &first);
        }
    }

    fn settle(&self) {
        sweep(&mut self.0.write());
    }
}

const _: () = assert!(GROUP == 256, "a slot's bit is a u8");
