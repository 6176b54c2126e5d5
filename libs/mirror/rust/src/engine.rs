//! One engine rank in one life: its reader, its mirror, and what waits to be sealed.
//!
//! `tell` takes messages in order. A malformed one changes nothing but that everything held is
//! suspect from then on; a message of another rank stops the batch before anything of it is used.

use kvatlas_pages::Memory;

use crate::fields::{self as f, announced_blocks};
use crate::groups::GroupFilter;
use crate::mirror::Mirror;
use crate::model::{Batch, Event, Reason, Refusal, Tier};
use crate::msgpack::Malformed;
use crate::payload::{Document, Element, Engine, Field, RawEvent};
use crate::said::Said;
use crate::{sglang, vllm};

/// What an engine's release cannot tell apart, as bits.
pub mod blind {
    pub const ADAPTERS: u8 = 1;
    pub const CACHE_SALTS: u8 = 2;
    pub const MULTIMODAL_ITEMS: u8 = 4;

    /// The bits in words, in the order of the alphabet.
    pub const NAMES: [(u8, &str); 3] = [
        (ADAPTERS, "adapters"),
        (CACHE_SALTS, "cache salts"),
        (MULTIMODAL_ITEMS, "multimodal items"),
    ];
}

/// Translates one engine's raw events; remembers which cache group is indexed. It is
/// small: a copy reads a message, and stays when the message turns out to be well-formed.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    pub(crate) engine: Engine,
    pub(crate) block_size: usize,
    pub(crate) groups: GroupFilter,
    pub(crate) blind_spots: u8,
}

impl Reader {
    /// Translates a message's events into `batch`, which is emptied first; returns the engine's
    /// clock and the rank, if it is said. What cannot be used is `Unindexable`. Of a malformed
    /// message, nothing in the batch or in this reader may be used.
    fn read(&mut self, payload: &[u8], batch: &mut Batch) -> Result<(f64, Option<u32>), Malformed> {
        batch.clear();
        let mut document = Document::open(payload)?;
        for _ in 0..document.count {
            let (hashes, tokens) = (batch.hashes.len(), batch.tokens.len());
            let event = match document.next(self.engine, &mut batch.tokens)? {
                Element::Event(event) => event,
                Element::Other(detail) => {
                    batch.tokens.truncate(tokens);
                    refuse(Refusal::malformed(detail), 0, true, batch);
                    continue;
                }
            };
            if let Err(refusal) = self.read_event(&event, batch) {
                batch.hashes.truncate(hashes);
                batch.tokens.truncate(tokens);
                let hides = event.kind != "BlockStored" && refusal.reason != Reason::OtherGroup;
                refuse(refusal, announced_blocks(&event), hides, batch);
            }
        }
        let ts = document.ts;
        Ok((ts, document.close()?))
    }

    fn read_event(&mut self, event: &RawEvent<'_>, batch: &mut Batch) -> Result<(), Refusal> {
        match event.kind {
            "BlockStored" => match self.engine {
                Engine::Vllm => vllm::read_stored(self, event, batch),
                Engine::Sglang => sglang::read_stored(self, event, batch),
            },
            "BlockRemoved" => {
                if self.engine == Engine::Vllm {
                    let group = f::group(event)?;
                    self.groups.admit_hash_only(group)?;
                }
                let first = batch.hashes.len();
                f::block_hashes(event, &mut batch.hashes)?;
                let tier = f::tier(event)?;
                let hashes = first..batch.hashes.len();
                batch.events.push(Event::Removed(hashes, tier));
                Ok(())
            }
            "AllBlocksCleared" => {
                let tier = match f::optional_text(event, Field::Medium)? {
                    None => None,
                    Some(_) => Some(f::tier(event)?),
                };
                batch.events.push(Event::Cleared(tier));
                Ok(())
            }
            other => {
                let short: String = other.chars().take(64).collect();
                let detail = format!("event type {short:?}");
                Err(Refusal::new(Reason::UnknownEvent, detail))
            }
        }
    }
}

fn refuse(refusal: Refusal, blocks: usize, may_hide_removal: bool, batch: &mut Batch) {
    batch.events.push(Event::Unindexable {
        reason: refusal.reason,
        blocks,
        may_hide_removal,
    });
    batch.refusals.push(refusal);
}

/// A store without tokens; one that names no blocks either says nothing.
pub fn stored_by_hash(first: usize, tier: Tier, batch: &mut Batch) {
    let hashes = first..batch.hashes.len();
    if !hashes.is_empty() {
        batch.events.push(Event::StoredByHash(hashes, tier));
    }
}

/// The refusal of another block size than the configured one.
pub fn wrong_block_size(what: &str, size: u64, configured: usize) -> Refusal {
    Refusal {
        reason: Reason::WrongBlockSize,
        detail: format!("{what} of {size} tokens; {configured} are configured"),
        block_size: Some(size),
    }
}

/// What became of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// It was applied, as far as it could be.
    Applied,
    /// It was no message; everything is suspect.
    Malformed(Malformed),
    /// It speaks for this other rank, and nothing of it was used.
    OtherRank(u32),
}

/// What a caller should hear of a run of messages beside what it changed.
#[derive(Default, Debug)]
pub struct Report {
    /// The engine's clock in the last message applied, seconds.
    pub ts: Option<f64>,
    /// A message named the rank, and it was the expected one.
    pub rank_said: bool,
    /// A message announced blocks with tokens that could be read.
    pub stored_any: bool,
    /// The first refusal of each reason.
    pub refusals: Vec<Refusal>,
    /// The refusal of a block size that came before any block that could be read.
    pub block_size_at_first: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct EngineMirror {
    /// What is held.
    pub mirror: Mirror,
    /// What is to be published.
    pub said: Said,
    pub(crate) reader: Reader,
    batch: Batch,
}

impl EngineMirror {
    /// Empty, at the start of an engine's life.
    #[must_use]
    pub fn new(engine: Engine, block_size: usize, blocks_max: usize, memory: Memory) -> Self {
        Self {
            mirror: Mirror::new(blocks_max, memory),
            said: Said::default(),
            reader: Reader {
                engine,
                block_size,
                groups: GroupFilter::default(),
                blind_spots: 0,
            },
            batch: Batch::default(),
        }
    }

    /// Takes one message's payload. `rank`: which it should be of, if it says.
    pub fn tell(&mut self, payload: &[u8], rank: u32, report: &mut Report) -> Told {
        let mut reader = self.reader;
        let (ts, dp_rank) = match reader.read(payload, &mut self.batch) {
            Ok(said) => said,
            Err(malformed) => {
                self.mirror.suspect_all();
                return Told::Malformed(malformed);
            }
        };
        match dp_rank {
            Some(said) if said != rank => return Told::OtherRank(said),
            Some(_) => report.rank_said = true,
            None => (),
        }
        self.reader = reader;
        report.ts = Some(ts);
        report.take(&self.batch);
        self.mirror.apply(&self.batch, &mut self.said);
        Told::Applied
    }

    /// What the engine's release cannot tell apart, as far as it was seen, in words.
    pub fn blind_spots(&self) -> impl Iterator<Item = &'static str> {
        let seen = self.reader.blind_spots;
        let named = blind::NAMES.into_iter();
        named
            .filter(move |(bit, _)| seen & bit != 0)
            .map(|(_, name)| name)
    }

    /// Reads one payload without applying it, for those who compare readers.
    ///
    /// # Errors
    /// [`Malformed`] if it is no message.
    pub fn read(&mut self, payload: &[u8]) -> Result<(f64, Option<u32>, &Batch), Malformed> {
        let mut reader = self.reader;
        let (ts, dp_rank) = reader.read(payload, &mut self.batch)?;
        self.reader = reader;
        Ok((ts, dp_rank, &self.batch))
    }
}

impl Report {
    fn take(&mut self, batch: &Batch) {
        // Which came first in a message, a refusal or a store, is asked only of refused ones.
        let mut refusals = batch.refusals.iter();
        for event in &batch.events {
            match event {
                Event::Stored(_) => self.stored_any = true,
                Event::Unindexable { .. } => {
                    if let Some(refusal) = refusals.next() {
                        self.note(refusal);
                    }
                }
                _ => (),
            }
        }
    }

    fn note(&mut self, refusal: &Refusal) {
        if !self.stored_any && self.block_size_at_first.is_none() {
            self.block_size_at_first = refusal.block_size;
        }
        if !self
            .refusals
            .iter()
            .any(|known| known.reason == refusal.reason)
        {
            self.refusals.push(refusal.clone());
        }
    }
}
