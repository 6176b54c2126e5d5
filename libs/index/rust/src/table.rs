//! The table: sequence hash to set of workers. Sharded, open addressing, one writer a shard, lock-free for readers.
//!
//! In the order in which to read:
//!
//! 1. [`directory`] – which shard a hash belongs to, and where its lines are
//! 2. [`lines`] – the order in which a search reads the lines; [`line`] – five entries in a cache line; [`probe_filter`] – the
//!    Bloom filter that ends searches early
//! 3. [`entry`] – a key and its set; the forms of a set, from the smallest: [`compact_set`], [`set_word`] (in
//!    [`spilled_sets`] where it is not compact), [`bitmap`] (in a [`bitmap_arena`])
//! 4. [`shard_table`] – what the one writer of a shard does; [`probe`] – its search; [`set_changes`] – a holder more or less
//! 5. [`resize`] and [`capacity`] – growth, clean-up and shrinking
//! 6. [`tier_tables`] – the tables of one shard, and which of them a tier changes; [`context`] – what changes share
//! 7. [`shard_locks`] – who may write to a shard

pub(crate) mod bitmap;
pub(crate) mod bitmap_arena;
pub(crate) mod capacity;
pub(crate) mod compact_set;
pub(crate) mod context;
pub(crate) mod directory;
pub(crate) mod entry;
pub(crate) mod line;
pub(crate) mod lines;
pub(crate) mod probe;
pub(crate) mod probe_filter;
pub(crate) mod resize;
pub(crate) mod set_changes;
pub(crate) mod set_word;
pub(crate) mod shard_locks;
pub(crate) mod shard_table;
pub(crate) mod spilled_sets;
pub(crate) mod tier_tables;
