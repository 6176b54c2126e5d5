//! The mirror of one engine rank from one start of the engine to the next: its reader, its mirror,
//! and the events that wait to be sealed.
//!
//! Messages are applied in order. A malformed one changes nothing, but everything held is suspect from
//! then on. A message of another rank stops the batch before any of it is used.

use kvatlas_engines::{Engine, Event, EventBatch, Reader, Refusal};
use kvatlas_pages::Memory;

use crate::mirror::Mirror;
use crate::pending::PendingEvents;

/// The effect of one [`EngineMirror::apply_payloads`], beside the events that it left pending.
#[derive(Default, Debug)]
pub struct ApplyOutcome {
    /// The number of payloads applied or found malformed; the rest begins with one of another rank.
    pub consumed: usize,
    /// The rank that the first payload not consumed names.
    pub other_rank: Option<u32>,
    /// A payload named the expected rank.
    pub rank_confirmed: bool,
    /// The engine's clock in the last well-formed payload, seconds.
    pub engine_clock_s: Option<f64>,
    /// A payload stored blocks with tokens that could be read.
    pub stored_any: bool,
    /// The number of malformed payloads.
    pub malformed: usize,
    /// The first malformed payload's error.
    pub first_malformed: Option<String>,
    /// The first refusal of each reason.
    pub refusals: Vec<Refusal>,
    /// The engine's block size, if an event was refused for it before any block could be read.
    pub refused_block_size: Option<u64>,
}

/// The reader, mirror and pending events of one engine rank; see the module.
#[derive(Debug)]
pub struct EngineMirror {
    /// The blocks held.
    pub mirror: Mirror,
    /// The events to publish.
    pub pending: PendingEvents,
    pub(crate) reader: Reader,
    batch: EventBatch,
}

impl EngineMirror {
    /// Empty, for the start of an engine process.
    #[must_use]
    pub fn new(engine: Engine, block_size: usize, blocks_max: usize, memory: Memory) -> Self {
        Self {
            mirror: Mirror::new(blocks_max, memory),
            pending: PendingEvents::default(),
            reader: Reader::new(engine, block_size),
            batch: EventBatch::default(),
        }
    }

    /// Applies the payloads of messages in order, up to one that names another rank than `rank`.
    pub fn apply_payloads(&mut self, payloads: &[&[u8]], rank: u32) -> ApplyOutcome {
        let mut outcome = ApplyOutcome::default();
        for payload in payloads {
            // A copy reads the message, and replaces the reader only if the message counts.
            let mut reader = self.reader;
            match reader.read(payload, &mut self.batch) {
                Err(error) => {
                    self.mirror.suspect_all();
                    outcome.malformed += 1;
                    outcome.first_malformed.get_or_insert(error.0);
                }
                Ok(info) => {
                    if info.dp_rank.is_some_and(|named| named != rank) {
                        outcome.other_rank = info.dp_rank;
                        break;
                    }
                    outcome.rank_confirmed |= info.dp_rank.is_some();
                    outcome.engine_clock_s = Some(info.clock_s);
                    outcome.add(&self.batch);
                    self.reader = reader;
                    self.mirror.apply(&self.batch, &mut self.pending);
                }
            }
            outcome.consumed += 1;
        }
        outcome
    }

    /// The properties of prompts that the engine's release does not tell apart, as far as seen.
    pub fn blind_spots(&self) -> impl Iterator<Item = &'static str> {
        self.reader.state.blind_spots.names()
    }
}

impl ApplyOutcome {
    fn add(&mut self, batch: &EventBatch) {
        let mut refusals = batch.refusals.iter();
        for event in &batch.events {
            match event {
                Event::Stored(_) => self.stored_any = true,
                Event::Unindexable { .. } => {
                    if let Some(refusal) = refusals.next() {
                        self.add_refusal(refusal);
                    }
                }
                _ => (),
            }
        }
    }

    fn add_refusal(&mut self, refusal: &Refusal) {
        if !self.stored_any && self.refused_block_size.is_none() {
            self.refused_block_size = refusal.block_size;
        }
        let is_known = |known: &Refusal| known.reason == refusal.reason;
        if !self.refusals.iter().any(is_known) {
            self.refusals.push(refusal.clone());
        }
    }
}
