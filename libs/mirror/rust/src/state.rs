//! A mirror as bytes, for a checkpoint: the mirror read back behaves as the one written.
//!
//! ```text
//! "kvmirror" | version 4 | engine 1 | block size 4 | group 1 + 16 | blind spots 1 | capacity 8
//! contexts 4 x (adapter, salt: length 4, UTF-8)
//! nodes    4 x (sequence 8, parent 4, context 4)              each after its parent, siblings in order
//! entries  4 x (engine hash 16, node 4, held_at 4, held 1, suspect 1)
//! arrivals 4 | oldest suspects 4 x (entry 4) | XXH3-64 of all before it 8         little-endian
//! ```
//!
//! Nodes are numbered from 1; 0 is the root. A placeholder has no parent. References, published
//! flags and digests are not written, since they follow from the rest. Nor are pending events and counters.
//!
//! Reading checks every rule between the parts. Whatever the bytes hold, the outcome is a possible
//! mirror or an error, and memory is bounded by their length.

use std::collections::HashMap;

use kvatlas_engines::{BlindSpots, Engine, EngineHash, IndexedGroup, Tier};
use kvatlas_pages::Memory;
use xxhash_rust::xxh3::xxh3_64;

use crate::engine_mirror::EngineMirror;
use crate::tables::block_tree::ROOT;
use crate::tables::engine_hashes::Row;
use crate::tables::prompt_contexts::PLAIN;
use crate::tables::slab::NONE;

const MAGIC: &[u8; 8] = b"kvmirror";
const VERSION: u32 = 1;
const SUM_BYTES: usize = 8;
const NODE_BYTES: usize = 16;
const ENTRY_BYTES: usize = 26;
const HAS_GROUP: u8 = 1;
const GROUP_BY_KIND: u8 = 2;

/// The bytes are not the state of such a mirror; the text says why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadState(pub &'static str);

impl EngineMirror {
    /// The blocks held, as bytes, without the pending events.
    #[must_use]
    pub fn export_state(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + 48 * self.mirror.held_blocks());
        out.extend_from_slice(MAGIC);
        write_u32(&mut out, VERSION);
        let reader = &self.reader;
        out.push(engine_number(reader.engine));
        write_u32(&mut out, reader.state.block_size as u32);
        let IndexedGroup { group, by_kind } = reader.state.group;
        let has = if group.is_some() { HAS_GROUP } else { 0 };
        out.push(has | if by_kind { GROUP_BY_KIND } else { 0 });
        out.extend_from_slice(&group.unwrap_or(0).to_le_bytes());
        out.push(reader.state.blind_spots.bits());
        out.extend_from_slice(&(self.mirror.capacity_blocks as u64).to_le_bytes());
        let numbers = self.write_nodes(&mut out);
        self.write_entries(&mut out, &numbers);
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Writes contexts and nodes; returns each node's number in the file.
    fn write_nodes(&self, out: &mut Vec<u8>) -> Vec<u32> {
        let tree = &self.mirror.tree;
        let contexts = &self.mirror.contexts;
        let mut order = Vec::new();
        tree.each_in_order(|node| order.push(node));
        let mut numbers = vec![0; tree.slots()];
        let mut places: HashMap<u32, u32> = HashMap::from([(PLAIN, 0)]);
        let mut used = vec![PLAIN];
        for (at, &node) in order.iter().enumerate() {
            numbers[node as usize] = at as u32 + 1;
            let context = tree.context(node);
            places.entry(context).or_insert_with(|| {
                used.push(context);
                used.len() as u32 - 1
            });
        }
        write_u32(out, used.len() as u32);
        for &context in &used {
            let (lora_name, cache_salt) = contexts.names(context);
            for name in [lora_name, cache_salt] {
                let name = name.unwrap_or("");
                write_u32(out, name.len() as u32);
                out.extend_from_slice(name.as_bytes());
            }
        }
        write_u32(out, order.len() as u32);
        for &node in &order {
            out.extend_from_slice(&tree.sequence(node).to_le_bytes());
            let parent = tree.parent(node);
            let number = if parent == NONE {
                NONE
            } else {
                numbers[parent as usize]
            };
            write_u32(out, number);
            write_u32(out, places[&tree.context(node)]);
        }
        numbers
    }

    fn write_entries(&self, out: &mut Vec<u8>, numbers: &[u32]) {
        let entries = &self.mirror.engine_hashes;
        let mut places = vec![NONE; entries.slots()];
        let mut count = 0;
        let start = out.len();
        write_u32(out, 0);
        for (id, row) in entries.rows() {
            places[id as usize] = count;
            count += 1;
            out.extend_from_slice(&row.hash.high.to_le_bytes());
            out.extend_from_slice(&row.hash.low.to_le_bytes());
            write_u32(out, numbers[row.node as usize]);
            write_u32(out, row.held_at);
            out.extend([row.held, row.suspect]);
        }
        out[start..start + 4].copy_from_slice(&count.to_le_bytes());
        write_u32(out, entries.arrivals());
        let queue: Vec<u32> = entries.suspects_by_age().collect();
        write_u32(out, queue.len() as u32);
        for id in queue {
            write_u32(out, places[id as usize]);
        }
    }

    /// The mirror that `export_state` wrote.
    ///
    /// # Errors
    /// [`BadState`] if the bytes are damaged, another engine's or of another block size, or hold
    /// more than `blocks_max` engine hashes.
    pub fn import_state(
        engine: Engine,
        block_size: usize,
        blocks_max: usize,
        memory: Memory,
        state: &[u8],
    ) -> Result<Self, BadState> {
        let Some((body, sum)) = state.split_last_chunk::<SUM_BYTES>() else {
            return Err(BadState("it is too short"));
        };
        let mut from = Bytes(body);
        if from.array::<8>()? != *MAGIC {
            return Err(BadState("it is not a mirror"));
        }
        check(from.u32()? == VERSION, "it is of another version")?;
        check(
            xxh3_64(body) == u64::from_le_bytes(*sum),
            "its checksum is wrong",
        )?;
        check(
            from.u8()? == engine_number(engine),
            "it is of another engine",
        )?;
        check(
            from.u32()? as usize == block_size,
            "it is of another block size",
        )?;
        let mut mirror = Self::new(engine, block_size, blocks_max, memory);
        let flags = from.u8()?;
        let group = i128::from_le_bytes(from.array()?);
        check(
            flags <= HAS_GROUP | GROUP_BY_KIND,
            "its cache group is not one",
        )?;
        mirror.reader.state.group = IndexedGroup {
            group: (flags & HAS_GROUP != 0).then_some(group),
            by_kind: flags & GROUP_BY_KIND != 0,
        };
        let blind_spots = BlindSpots::from_bits(from.u8()?);
        mirror.reader.state.blind_spots =
            blind_spots.ok_or(BadState("its blind spots are unknown"))?;
        let capacity = u64::from_le_bytes(from.array()?);
        mirror.mirror.capacity_blocks =
            usize::try_from(capacity).map_err(|_| BadState("its capacity is too large"))?;
        let nodes = mirror.read_nodes(&mut from)?;
        mirror.read_entries(&mut from, &nodes)?;
        check(from.0.is_empty(), "it has bytes after its end")?;
        check(
            mirror.mirror.held_blocks() <= mirror.mirror.blocks_max(),
            "it holds more blocks than are allowed",
        )?;
        mirror.publish_reachable(&nodes)?;
        Ok(mirror)
    }

    /// Reads contexts and nodes; returns the nodes by their number in the file, the root first.
    fn read_nodes(&mut self, from: &mut Bytes<'_>) -> Result<Vec<u32>, BadState> {
        let (tree, contexts) = (&mut self.mirror.tree, &mut self.mirror.contexts);
        let count = from.count(2 * 4)?;
        let mut used = Vec::with_capacity(count);
        for _ in 0..count {
            let (lora_name, cache_salt) = (from.name()?, from.name()?);
            used.push(contexts.intern(Some(lora_name), Some(cache_salt)));
        }
        let count = from.count(NODE_BYTES)?;
        let mut nodes = Vec::with_capacity(count + 1);
        nodes.push(ROOT);
        for _ in 0..count {
            let sequence = from.u64()?;
            let (parent, context) = (from.u32()?, from.u32()?);
            let Some(&context) = used.get(context as usize) else {
                return Err(BadState("a block names no context"));
            };
            check(!tree.knows(sequence), "a block is there twice")?;
            let node = tree.find_or_add(sequence);
            if parent != NONE {
                let Some(&parent) = nodes.get(parent as usize) else {
                    return Err(BadState("a block comes before its parent"));
                };
                contexts.share(context);
                tree.attach(node, parent, context);
            }
            nodes.push(node);
        }
        for context in used {
            contexts.release(context); // taken by `intern`; blocks have their own
        }
        Ok(nodes)
    }

    fn read_entries(&mut self, from: &mut Bytes<'_>, nodes: &[u32]) -> Result<(), BadState> {
        let (tree, entries) = (&mut self.mirror.tree, &mut self.mirror.engine_hashes);
        let count = from.count(ENTRY_BYTES)?;
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            let (high, low) = (from.u64()?, from.u64()?);
            let (number, held_at) = (from.u32()?, from.u32()?);
            let (held, suspect) = (from.u8()?, from.u8()?);
            let node = nodes.get(number as usize).copied().unwrap_or(ROOT);
            check(
                node != ROOT && tree.parent(node) != NONE,
                "an entry names no block",
            )?;
            check(
                held != 0 && held >> Tier::COUNT == 0 && suspect & !held == 0,
                "an entry is on no tiers",
            )?;
            let hash = EngineHash { high, low };
            check(entries.find(hash).is_none(), "an entry is there twice")?;
            let id = entries.restore(Row {
                hash,
                node,
                held_at,
                held,
                suspect,
            });
            for tier in entries.tiers(id) {
                tree.add_ref(node, tier);
            }
            ids.push(id);
        }
        let arrivals = from.u32()?;
        let count = from.count(4)?;
        let mut queue = Vec::with_capacity(count);
        let mut queued = vec![false; ids.len()];
        for _ in 0..count {
            let place = from.u32()? as usize;
            let once = queued
                .get_mut(place)
                .is_some_and(|seen| !std::mem::replace(seen, true));
            check(
                once,
                "an entry is queued as suspect twice, or is not suspect",
            )?;
            queue.push(ids[place]);
        }
        check(
            entries.restore_suspects(arrivals, queue),
            "its queue of suspects does not match its entries",
        )
    }

    /// Derives what is published. A placeholder needs held children, any other node an entry.
    fn publish_reachable(&mut self, nodes: &[u32]) -> Result<(), BadState> {
        let (tree, published) = (&mut self.mirror.tree, &mut self.mirror.published);
        for &node in &nodes[1..] {
            let parent = tree.parent(node);
            if parent == NONE {
                check(tree.has_children(node), "a placeholder has no children")?;
                continue;
            }
            check(tree.is_held(node), "a block has no engine hash")?;
            if tree.is_published(parent) {
                tree.set_published(node, true);
                for tier in tree.tiers(node) {
                    published[tier as usize].blocks += 1;
                    published[tier as usize].digest ^= tree.sequence(node);
                }
            }
        }
        Ok(())
    }
}

const fn engine_number(engine: Engine) -> u8 {
    match engine {
        Engine::Vllm => 1,
        Engine::Sglang => 2,
    }
}

fn check(holds: bool, otherwise: &'static str) -> Result<(), BadState> {
    if holds {
        Ok(())
    } else {
        Err(BadState(otherwise))
    }
}

fn write_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// The bytes left to read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadState> {
        let Some((first, rest)) = self.0.split_first_chunk::<N>() else {
            return Err(BadState("it ends early"));
        };
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, BadState> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, BadState> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, BadState> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of rows; an error if there are not enough bytes for them.
    fn count(&mut self, row_bytes: usize) -> Result<usize, BadState> {
        let count = self.u32()? as usize;
        check(count <= self.0.len() / row_bytes, "it ends early")?;
        Ok(count)
    }

    fn name(&mut self) -> Result<&'a str, BadState> {
        let length = self.count(1)?;
        let (name, rest) = self.0.split_at(length);
        self.0 = rest;
        std::str::from_utf8(name).map_err(|_| BadState("a name is not text"))
    }
}
