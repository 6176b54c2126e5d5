//! The index under test, as a trial calls it.
//!
//! Every design is called through the trait that all designs share. The flat index is called as its users
//! call it: with worker slots known beforehand and with its own form of answers. Only it has options.

use kvatlas_baselines::catalogue::Design;
use kvatlas_baselines::stream::{Op, Record};
use kvatlas_baselines::{Answer, PrefixIndex};
use kvatlas_index::{
    Change, FindOptions, Hashes, Index, IndexConfig, Matches, Pairs, Query, SlotId, Tier,
    WorkerKey, WorkerSlot,
};

/// Name of the flat index in the catalogue.
pub const FLAT: &str = "flat index";

/// Bytes a block that are taken beforehand, if any are: what the largest tables need, and some to grow into.
const KEPT_BYTES: usize = 32;

/// Buffers that a thread keeps from call to call.
#[derive(Default)]
pub struct Scratch {
    answer: Answer,
    matches: Matches,
    pairs: Pairs,
}

/// An index that a trial plays a stream on. As in [`PrefixIndex`], the calls about one worker come in order.
pub trait Target: Sync {
    /// The worker holds these blocks, which follow the one of hash `parent`.
    fn store(&self, scratch: &mut Scratch, worker: u32, parent: Option<u64>, chunks: &[u64]);
    /// The worker no longer holds these.
    fn remove(&self, worker: u32, hashes: &[u64]);
    /// Applies the stores and removes among these records, as if one after another.
    fn apply(&self, scratch: &mut Scratch, records: &[Record<'_>]) {
        for record in records {
            match record.op {
                Op::Query(_) => {}
                Op::Store { parent, chunks } => {
                    self.store(scratch, record.worker, parent, chunks);
                }
                Op::Remove(hashes) => self.remove(record.worker, hashes),
            }
        }
    }
    /// Looks a prompt up; what was found stays in `scratch`.
    fn find(&self, scratch: &mut Scratch, chunks: &[u64]);
    /// The same by sequence hashes; false if the index takes none.
    fn find_hashed(&self, _: &mut Scratch, _hashes: &[u64]) -> bool {
        false
    }
    /// Limits the number of workers in answers from now on; 0: all. False if the index has no limit.
    fn set_limit(&mut self, _limit: usize) -> bool {
        false
    }
    /// The last answer as (worker, depth), sorted.
    fn found(&self, scratch: &Scratch) -> Vec<(u32, u32)>;
    /// Blocks of the deepest match that was found last, 0 if there was none; not told by an index whose answers are in
    /// another order.
    fn deepest(&self, _: &Scratch) -> Option<u32> {
        None
    }
    /// Returns when all is applied, and what was put off is done.
    fn settle(&self);
    /// Bytes in use by its own account, if it takes memory past the allocator.
    fn accounted_bytes(&self) -> Option<usize>;
}

/// Any design, through the common trait.
pub struct Common(pub Box<dyn PrefixIndex>);

impl Target for Common {
    fn store(&self, _: &mut Scratch, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        self.0.store(worker, parent, chunks);
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        self.0.remove(worker, hashes);
    }

    fn find(&self, scratch: &mut Scratch, chunks: &[u64]) {
        self.0.find(chunks, &mut scratch.answer);
    }

    fn found(&self, scratch: &Scratch) -> Vec<(u32, u32)> {
        let found = scratch.answer.matches.iter();
        let mut found: Vec<_> = found.map(|m| (m.worker, m.depth)).collect();
        found.sort_unstable();
        found
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn accounted_bytes(&self) -> Option<usize> {
        self.0.accounted_bytes()
    }
}

/// The flat index.
pub struct Flat {
    index: Index,
    slots: Vec<SlotId>,
    /// Worker by slot.
    owners: Vec<u32>,
    options: FindOptions<'static>,
    /// Answers are pairs of slot and depth, else ordered ids.
    pairs: bool,
}

impl Flat {
    /// An empty index with this many workers, all matchable, and with room for `reserved` blocks.
    ///
    /// # Errors
    /// If the index has no room for them.
    pub fn new(
        reserved: Option<u64>,
        options: FindOptions<'static>,
        pairs: bool,
        workers: u32,
    ) -> Result<Self, String> {
        let index = Index::new(IndexConfig::default());
        let prefaulter = index.prefaulter(); // as an indexer has one
        std::thread::Builder::new()
            .name("index memory".into())
            .spawn(|| prefaulter.run())
            .map_err(|error| error.to_string())?;
        if let Some(blocks) = reserved {
            // A quarter to spare, as an operator would choose.
            index.reserve((blocks + blocks / 4) as usize);
        }
        let slots = (0..workers).map(|worker| {
            let slot = index.allocate(WorkerKey {
                worker_id: worker.into(),
                dp_rank: 0,
            })?;
            index.publish(slot);
            Ok(slot)
        });
        let slots = slots.collect::<Result<Vec<SlotId>, kvatlas_index::IndexError>>();
        let slots = slots.map_err(|error| error.to_string())?;
        let end = slots.iter().map(|slot| slot.slot().index() + 1).max();
        let mut owners = vec![0; end.unwrap_or(0)];
        for (worker, slot) in (0..).zip(&slots) {
            owners[slot.slot().index()] = worker;
        }
        Ok(Self {
            slots,
            owners,
            index,
            options,
            pairs,
        })
    }

    #[inline]
    fn look_up(&self, scratch: &mut Scratch, query: Query<'_>) {
        if self.pairs {
            self.index
                .find_pairs(query, &self.options, &mut scratch.pairs);
        } else {
            self.index.find(query, &self.options, &mut scratch.matches);
        }
    }
}

impl Target for Flat {
    fn apply(&self, _: &mut Scratch, records: &[Record<'_>]) {
        self.index.apply(records.iter().filter_map(|record| {
            let (stores, hashes) = match record.op {
                Op::Query(_) => return None,
                Op::Store { parent, chunks } => (true, Hashes::Chunks { parent, chunks }),
                Op::Remove(hashes) => (false, Hashes::Sequences(hashes)),
            };
            Some(Change {
                slot: self.slots[record.worker as usize],
                tier: Tier::Device,
                stores,
                hashes,
            })
        }));
    }

    fn store(&self, _: &mut Scratch, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        let slot = self.slots[worker as usize];
        self.index.store_chunks(slot, Tier::Device, parent, chunks);
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        self.index
            .remove(self.slots[worker as usize], Tier::Device, hashes);
    }

    fn find(&self, scratch: &mut Scratch, chunks: &[u64]) {
        self.look_up(scratch, Query::ChunkHashes(chunks));
    }

    fn find_hashed(&self, scratch: &mut Scratch, hashes: &[u64]) -> bool {
        self.look_up(scratch, Query::SequenceHashes(hashes));
        true
    }

    fn set_limit(&mut self, limit: usize) -> bool {
        self.options.limit = limit;
        true
    }

    fn found(&self, scratch: &Scratch) -> Vec<(u32, u32)> {
        let (matches, pairs) = (&scratch.matches, &scratch.pairs);
        let mut found: Vec<(u32, u32)> = if self.pairs {
            let owner = |slot: &WorkerSlot| self.owners[slot.index()];
            let workers = pairs.slots.iter().map(owner);
            workers.zip(pairs.depths.iter().copied()).collect()
        } else {
            let workers = matches.workers.iter().map(|key| key.worker_id as u32);
            workers.zip(matches.depths.iter().copied()).collect()
        };
        found.sort_unstable();
        found
    }

    #[inline]
    fn deepest(&self, scratch: &Scratch) -> Option<u32> {
        let depths = if self.pairs {
            &scratch.pairs.depths
        } else {
            &scratch.matches.depths
        };
        Some(depths.first().copied().unwrap_or(0))
    }

    fn settle(&self) {
        const SLICE: usize = 4096;
        while self.index.sweep(SLICE).more {
            std::thread::yield_now();
        }
    }

    fn accounted_bytes(&self) -> Option<usize> {
        Some(self.index.memory_bytes().total())
    }
}

/// Options that only the flat index has.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Options {
    /// Most workers an answer names; 0 for all.
    pub limit: usize,
    /// Answers are pairs of slot and depth, else ordered ids.
    pub pairs: bool,
    /// Verify every depth.
    pub exact: bool,
    /// Blocks to make room for beforehand.
    pub sized_for: Option<u64>,
    /// Number of blocks for which memory is taken from the system beforehand.
    pub kept_for: Option<u64>,
}

/// An empty index of a design.
///
/// # Errors
/// If it has no room for so many workers.
pub fn make(design: &Design, options: &Options, workers: u32) -> Result<Box<dyn Target>, String> {
    if design.name != FLAT {
        return Ok(Box::new(Common((design.make)())));
    }
    let find = FindOptions {
        limit: options.limit,
        exact: options.exact,
        ..FindOptions::default()
    };
    let flat = Flat::new(options.sized_for, find, options.pairs, workers)?;
    if let Some(blocks) = options.kept_for
        && !flat.index.keep_memory(blocks as usize * KEPT_BYTES)
    {
        return Err(format!("the system has no memory for {blocks} blocks"));
    }
    Ok(Box::new(flat))
}
