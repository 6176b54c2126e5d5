//! Translates one engine's messages into engine events.

use crate::engine::Engine;
use crate::event::{Event, EventBatch, Refusal, RefusalReason};
use crate::fields::{self, announced_blocks};
use crate::msgpack::Malformed;
use crate::payload::{Element, Field, Payload, RawEvent};
use crate::reader_state::ReaderState;

/// The part of a message that is not events.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MessageInfo {
    /// The engine's clock, seconds.
    pub clock_s: f64,
    /// The data-parallel rank, if the message names it.
    pub dp_rank: Option<u32>,
}

/// Reads the messages of one engine rank. It is small: copy it, read a message with the copy, and
/// keep the copy if the message is to count.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The sender.
    pub engine: Engine,
    /// The facts that earlier messages have established.
    pub state: ReaderState,
}

impl Reader {
    /// A reader for the start of an engine process.
    #[must_use]
    pub fn new(engine: Engine, block_size: usize) -> Self {
        Self {
            engine,
            state: ReaderState {
                block_size,
                group: Default::default(),
                blind_spots: Default::default(),
            },
        }
    }

    /// Reads a message's payload into `batch`, which is emptied first. An event that cannot be used
    /// becomes [`Event::Unindexable`].
    ///
    /// # Errors
    /// [`Malformed`]: the payload is not a message. Neither the batch nor this reader may be used then.
    pub fn read(
        &mut self,
        payload: &[u8],
        batch: &mut EventBatch,
    ) -> Result<MessageInfo, Malformed> {
        batch.clear();
        let mut payload = Payload::open(payload, self.engine.array_fields())?;
        for _ in 0..payload.events {
            let (hashes, tokens) = (batch.hashes.len(), batch.tokens.len());
            let event = match payload.next(&mut batch.tokens)? {
                Element::Event(event) => event,
                Element::Other(detail) => {
                    batch.tokens.truncate(tokens);
                    batch.refuse(Refusal::malformed(detail), 0, true);
                    continue;
                }
            };
            if let Err(refusal) = self.read_event(&event, batch) {
                batch.hashes.truncate(hashes);
                batch.tokens.truncate(tokens);
                let may_hide_removal =
                    event.kind != "BlockStored" && refusal.reason != RefusalReason::OtherGroup;
                batch.refuse(refusal, announced_blocks(&event), may_hide_removal);
            }
        }
        let clock_s = payload.clock_s;
        let dp_rank = payload.close()?;
        Ok(MessageInfo { clock_s, dp_rank })
    }

    fn read_event(&mut self, event: &RawEvent<'_>, batch: &mut EventBatch) -> Result<(), Refusal> {
        match event.kind {
            "BlockStored" => self.engine.read_stored(&mut self.state, event, batch),
            "BlockRemoved" => {
                self.engine.admit_removed(&self.state, event)?;
                let first = batch.hashes.len();
                fields::block_hashes(event, &mut batch.hashes)?;
                let tier = fields::tier(event)?;
                let hashes = first..batch.hashes.len();
                batch.events.push(Event::Removed(hashes, tier));
                Ok(())
            }
            "AllBlocksCleared" => {
                // No known release names a medium here. If one does, only that tier is cleared.
                let tier = match fields::optional_text(event, Field::Medium)? {
                    None => None,
                    Some(_) => Some(fields::tier(event)?),
                };
                batch.events.push(Event::Cleared(tier));
                Ok(())
            }
            other => {
                let short: String = other.chars().take(64).collect();
                let detail = format!("event type {short:?}");
                Err(Refusal::new(RefusalReason::UnknownEvent, detail))
            }
        }
    }
}

/// The data-parallel rank that a message names, without reading its events.
///
/// # Errors
/// [`Malformed`]: the payload is not a message.
pub fn dp_rank(payload: &[u8]) -> Result<Option<u32>, Malformed> {
    let mut payload = Payload::open(payload, |_| &[])?;
    let mut tokens = Vec::new();
    for _ in 0..payload.events {
        payload.next(&mut tokens)?;
        tokens.clear();
    }
    payload.close()
}
