//! From a message's payload to raw events: the part that both engines and all their releases share.
//!
//! The payload is the msgpack array `[ts, [event, …], dp_rank]`; an event is a map
//! `{"type": name, field: value}` or, in older releases, an array `[name, value, …]` whose order of
//! fields is the engine's. Lengths say nothing: newer releases append, older ones are shorter. A raw
//! event is only where its fields begin; nothing of them is checked yet but that they are msgpack.
//!
//! A payload is walked once, and whether it is well-formed is known at its end. So whoever reads its
//! events has to be able to forget all that he has made of them.

use std::ops::Range;

use crate::msgpack::{Cursor, Head, Malformed};

/// Whose messages they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// From 0.10.2.
    Vllm,
    /// From 0.5.17.
    Sglang,
}

/// A field of any event that a reader looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Field {
    Type,
    BlockHashes,
    ParentBlockHash,
    TokenIds,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    GroupIdx,
    SpecKind,
    Locality,
    CacheSalt,
    /// Known to stand in an array, of no use to us.
    Unused,
}

const FIELDS: usize = Field::Unused as usize + 1;

impl Field {
    fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"type" => Self::Type,
            b"block_hashes" => Self::BlockHashes,
            b"parent_block_hash" => Self::ParentBlockHash,
            b"token_ids" => Self::TokenIds,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"extra_keys" => Self::ExtraKeys,
            b"group_idx" => Self::GroupIdx,
            b"kv_cache_spec_kind" => Self::SpecKind,
            b"locality" => Self::Locality,
            b"cache_salt" => Self::CacheSalt,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Type => "type",
            Self::BlockHashes => "block_hashes",
            Self::ParentBlockHash => "parent_block_hash",
            Self::TokenIds => "token_ids",
            Self::BlockSize => "block_size",
            Self::LoraId => "lora_id",
            Self::Medium => "medium",
            Self::LoraName => "lora_name",
            Self::ExtraKeys => "extra_keys",
            Self::GroupIdx => "group_idx",
            Self::SpecKind => "kv_cache_spec_kind",
            Self::Locality => "locality",
            Self::CacheSalt => "cache_salt",
            Self::Unused => "unused",
        }
    }
}

/// The order of an array's fields after its type.
fn order(engine: Engine, kind: &str) -> &'static [Field] {
    use Field::{
        BlockHashes, BlockSize, CacheSalt, ExtraKeys, GroupIdx, LoraId, LoraName, Medium,
        ParentBlockHash, SpecKind, TokenIds, Unused,
    };
    match (engine, kind) {
        (Engine::Vllm, "BlockStored") => &[
            BlockHashes,
            ParentBlockHash,
            TokenIds,
            BlockSize,
            LoraId,
            Medium,
            LoraName,
            ExtraKeys,
            GroupIdx,
            SpecKind,
        ],
        (Engine::Vllm, "BlockRemoved") => &[BlockHashes, Medium, GroupIdx],
        (Engine::Sglang, "BlockStored") => &[
            BlockHashes,
            ParentBlockHash,
            TokenIds,
            BlockSize,
            LoraId,
            Medium,
            CacheSalt,
            Unused, // session_id
            LoraName,
        ],
        (Engine::Sglang, "BlockRemoved") => &[BlockHashes, Medium],
        _ => &[],
    }
}

/// One event with its fields by name, none of them checked.
#[derive(Clone, Debug)]
pub struct RawEvent<'a> {
    pub kind: &'a str,
    /// How many fields an array carried; None: it was a map. Tells old releases from new ones.
    pub positions: Option<u32>,
    /// Where in the column of tokens the token ids are; None: they are not all plain numbers.
    pub tokens: Option<Range<usize>>,
    payload: &'a [u8],
    /// Where the fields begin; 0, where the message itself does: absent.
    places: [u32; FIELDS],
}

impl<'a> RawEvent<'a> {
    fn new(payload: &'a [u8], positions: Option<u32>) -> Self {
        Self {
            kind: "",
            positions,
            tokens: None,
            payload,
            places: [0; FIELDS],
        }
    }

    /// The field's head, and what follows it; an absent one is nil.
    pub fn field(&self, field: Field) -> Result<(Head<'a>, Cursor<'a>), Malformed> {
        let place = self.places[field as usize] as usize;
        let mut cursor = Cursor::new(self.payload, place);
        if place == 0 {
            return Ok((Head::Nil, cursor));
        }
        let head = cursor.head()?;
        Ok((head, cursor))
    }

    /// Passes over a field's value and notes where it is.
    fn note(
        &mut self,
        field: Field,
        cursor: &mut Cursor<'a>,
        tokens: &mut Vec<u32>,
    ) -> Result<(), Malformed> {
        // A message is below 4 GiB: `Document::open` has seen to it.
        self.places[field as usize] = cursor.at() as u32;
        if field == Field::TokenIds {
            self.tokens = cursor.skip_numbers_u32(IN_EVENT, tokens)?;
            return Ok(());
        }
        cursor.skip(IN_EVENT)
    }
}

/// How deep the values of an event stand, and the events themselves.
const IN_EVENT: u32 = 1;
const IN_BATCH: u32 = 0;

/// What stands in a batch's array of events.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // lives for a moment, and nearly always is an event
pub enum Element<'a> {
    Event(RawEvent<'a>),
    /// It is no event, and why.
    Other(&'static str),
}

/// A payload on its way through: its head has been read.
#[derive(Debug)]
pub struct Document<'a> {
    /// The engine's clock, seconds.
    pub ts: f64,
    /// How many elements `next` has to be asked for before `close`.
    pub count: u32,
    payload: &'a [u8],
    cursor: Cursor<'a>,
    elements_behind: u32,
}

impl<'a> Document<'a> {
    /// Reads what stands before the events.
    pub fn open(payload: &'a [u8]) -> Result<Self, Malformed> {
        if u32::try_from(payload.len()).is_err() {
            return Err(Malformed(format!("a message of {} bytes", payload.len())));
        }
        let mut cursor = Cursor::new(payload, 0);
        let Head::Array(elements) = cursor.head()? else {
            return Err(Malformed("a batch is an array".into()));
        };
        if elements < 2 {
            return Err(Malformed(format!(
                "a batch of {elements} elements; time and events are expected"
            )));
        }
        let ts = match cursor.head()? {
            Head::Float(ts) => ts,
            Head::Int(ts) => ts.wide() as f64,
            _ => return Err(Malformed("a batch begins with its time".into())),
        };
        let Head::Array(count) = cursor.head()? else {
            let what = "a batch's second element is its array of events";
            return Err(Malformed(what.into()));
        };
        Ok(Self {
            ts,
            count,
            payload,
            cursor,
            elements_behind: elements - 2,
        })
    }

    /// Passes over the next element, checking it. Token ids that are plain numbers are appended to
    /// `tokens`, since most of a payload is token ids.
    pub fn next(
        &mut self,
        engine: Engine,
        tokens: &mut Vec<u32>,
    ) -> Result<Element<'a>, Malformed> {
        let mut inside = self.cursor;
        match inside.head()? {
            Head::Map(pairs) => {
                self.cursor = inside;
                self.map_event(pairs, tokens)
            }
            Head::Array(elements) if elements > 0 => {
                self.cursor = inside;
                self.array_event(engine, elements, tokens)
            }
            _ => {
                self.cursor.skip(IN_BATCH)?;
                Ok(Element::Other(
                    "an event that is neither a map nor an array",
                ))
            }
        }
    }

    fn map_event(&mut self, pairs: u32, tokens: &mut Vec<u32>) -> Result<Element<'a>, Malformed> {
        let mut event = RawEvent::new(self.payload, None);
        for _ in 0..pairs {
            match self.cursor.key(IN_EVENT, Field::named)? {
                Some(field) => event.note(field, &mut self.cursor, tokens)?,
                None => self.cursor.skip(IN_EVENT)?,
            }
        }
        let Head::Text(kind) = event.field(Field::Type)?.0 else {
            return Ok(Element::Other("an event without a type"));
        };
        event.kind = kind;
        Ok(Element::Event(event))
    }

    fn array_event(
        &mut self,
        engine: Engine,
        elements: u32,
        tokens: &mut Vec<u32>,
    ) -> Result<Element<'a>, Malformed> {
        let mut event = RawEvent::new(self.payload, Some(elements - 1));
        event.note(Field::Type, &mut self.cursor, tokens)?;
        let kind = match event.field(Field::Type)?.0 {
            Head::Text(kind) => Some(kind),
            _ => None,
        };
        let order = kind.map_or(&[][..], |kind| order(engine, kind));
        for position in 0..elements as usize - 1 {
            match order.get(position) {
                Some(field) => event.note(*field, &mut self.cursor, tokens)?,
                None => self.cursor.skip(IN_EVENT)?,
            }
        }
        let Some(kind) = kind else {
            return Ok(Element::Other("an event that does not begin with its type"));
        };
        event.kind = kind;
        Ok(Element::Event(event))
    }

    /// Checks what stands behind the events; returns the rank, if the engine says it. Only now is
    /// the payload known to be well-formed.
    pub fn close(mut self) -> Result<Option<u32>, Malformed> {
        let mut rank = self.cursor;
        for _ in 0..self.elements_behind {
            self.cursor.skip(IN_BATCH)?;
        }
        if !self.cursor.is_at_end() {
            return Err(Malformed("not msgpack: trailing bytes".into()));
        }
        if self.elements_behind == 0 {
            return Ok(None);
        }
        dp_rank(rank.head()?)
    }
}

fn dp_rank(head: Head<'_>) -> Result<Option<u32>, Malformed> {
    match head {
        Head::Nil => Ok(None),
        Head::Int(rank) if u32::try_from(rank.wide()).is_ok() => Ok(Some(rank.wide() as u32)),
        other => Err(Malformed(format!(
            "a data-parallel rank of type {}",
            other.type_name()
        ))),
    }
}
