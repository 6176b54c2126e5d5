//! Sharded host bitmaps: sequence hash → 256 bits, one per host, searched by bisection.
//!
//! Stands for the data layer of Modular's router (modular.com/blog, "Why LLM Inference Needs a New Kind of
//! Router, Part 2", May 2026; the router is written in Mojo): every block has a fixed-width bitmap of the
//! hosts that hold it; because the hosts of a prefix only shrink with depth, a query bisects the chain for
//! the depths where they change, O(K log N) for K hosts and N blocks; a mask of live hosts is intersected
//! with what is found; a host is removed in two phases, first out of the mask, so that no answer names it,
//! later out of the bitmaps, after which its bit may be given to another. A query takes the prompt's
//! sequence hashes; here it computes them all before it begins.
//!
//! 256 hosts are the width of a group. More workers than that take several groups, asked one after the
//! other. Writers of one block meet at a shard's lock.

use parking_lot::{RwLock, RwLockReadGuard};
use rustc_hash::FxHashMap;

use crate::bitmap_roster::{BitmapRoster, GROUP, GroupRoster, Hosts, Seat, for_each};
use crate::chain::{chained, hash_at};
use crate::design::{Answer, PrefixIndex};

const SHARD_BITS: u32 = 6;

/// Retired hosts that are worth a pass over all bitmaps.
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
    roster: BitmapRoster,
    groups: Vec<Group>,
}

/// Groups of 256 hosts each.
#[derive(Default)]
pub struct HostBitmaps(RwLock<State>);

impl HostBitmaps {
    /// Shared access to the groups, and the worker's seat in one of them.
    fn seated(&self, worker: u32) -> (RwLockReadGuard<'_, State>, Seat) {
        loop {
            let state = self.0.read();
            if let Some(seat) = state.roster.seat(worker) {
                return (state, seat);
            }
            drop(state);
            let mut state = self.0.write();
            if state.roster.take_seat(worker).is_none() {
                if state.roster.retired_count() > 0 {
                    sweep(&mut state);
                } else {
                    state.groups.push(Group::new());
                    state.roster.groups.push(GroupRoster::default());
                }
            }
        }
    }
}

/// The second phase of removal, for all hosts in the first.
fn sweep(state: &mut State) {
    let State { roster, groups } = state;
    for (number, group) in groups.iter().enumerate() {
        let retired = roster.groups[number].retired;
        if !is_empty(&retired) {
            group.sweep(&retired);
            roster.swept(number);
        }
    }
}

/// A bisection of one prompt in one group.
struct Search<'a> {
    group: &'a Group,
    owners: &'a [u32],
    hashes: &'a [u64],
    found: &'a mut dyn FnMut(u32, usize),
}

impl Search<'_> {
    /// All of `hosts` hold block `low` and none holds block `high`: reports how far each goes.
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
        let (state, seat) = self.seated(worker);
        let group = &state.groups[seat.group];
        let (word, bit) = (usize::from(seat.bit) / 64, 1 << (seat.bit % 64));
        for (_, hash) in chained(parent, chunks) {
            group.shard(hash).write().entry(hash).or_default()[word] |= bit;
        }
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        let state = self.0.read();
        let Some(seat) = state.roster.seat(worker) else {
            return;
        };
        let group = &state.groups[seat.group];
        let (word, bit) = (usize::from(seat.bit) / 64, 1 << (seat.bit % 64));
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
        state.roster.retire(worker);
        if state.roster.retired_count() >= SWEEP_AT {
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
        for (group, roster) in state.groups.iter().zip(&state.roster.groups) {
            let first = both(&group.hosts(answer.hashes[0]), &roster.alive);
            if is_empty(&first) {
                continue;
            }
            let Answer {
                hashes, matches, ..
            } = &mut *answer;
            let mut search = Search {
                group,
                owners: &roster.owners,
                hashes,
                found: &mut |worker, depth| {
                    // Prompts have fewer than 2^32 blocks.
                    let depth = depth as u32;
                    matches.push(crate::design::Match { worker, depth });
                },
            };
            search.between(0, chunks.len(), &first);
        }
    }

    fn settle(&self) {
        sweep(&mut self.0.write());
    }
}

const _: () = assert!(GROUP == 256, "a seat's bit is a u8");
