//! From a message's payload to raw events: the encoding that all engines and releases share.
//!
//! ```text
//! payload = msgpack array [ts, [event, …], dp_rank]
//! event   = map {"type": name, field: value}   newer releases
//!         | array [name, value, …]             older ones; the order of fields is the engine's
//! ```
//!
//! Arrays may have any length: newer releases append fields, older ones have fewer. A raw event only
//! knows where its fields begin, and that they are well-formed msgpack.
//!
//! A payload is walked once, and only at its end is it known to be well-formed. So the caller must be
//! able to discard everything that it made of the events.

use std::ops::Range;

use crate::msgpack::{Cursor, Head, Malformed};

/// A field that a reader uses.
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
    /// A field that no reader uses, in an array.
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

/// One event, its fields by name and unchecked.
#[derive(Clone, Debug)]
pub struct RawEvent<'a> {
    pub kind: &'a str,
    /// The number of fields of an array, which tells old releases from new ones; `None`: a map.
    pub positions: Option<u32>,
    /// The range of the token ids in their column; `None`: they are not all plain numbers.
    pub tokens: Option<Range<usize>>,
    payload: &'a [u8],
    /// The offset of each field in the payload; 0 means absent, since the message begins there.
    offsets: [u32; FIELDS],
}

impl<'a> RawEvent<'a> {
    fn new(payload: &'a [u8], positions: Option<u32>) -> Self {
        Self {
            kind: "",
            positions,
            tokens: None,
            payload,
            offsets: [0; FIELDS],
        }
    }

    /// The field's head, and a cursor behind it. An absent field is nil.
    pub fn field(&self, field: Field) -> Result<(Head<'a>, Cursor<'a>), Malformed> {
        let offset = self.offsets[field as usize] as usize;
        let mut cursor = Cursor::new(self.payload, offset);
        if offset == 0 {
            return Ok((Head::Nil, cursor));
        }
        let head = cursor.head()?;
        Ok((head, cursor))
    }

    /// Skips a field's value and records its offset.
    fn record(
        &mut self,
        field: Field,
        cursor: &mut Cursor<'a>,
        tokens: &mut Vec<u32>,
    ) -> Result<(), Malformed> {
        // A message is below 4 GiB: `Payload::open` checks it.
        self.offsets[field as usize] = cursor.at() as u32;
        if field == Field::TokenIds {
            self.tokens = cursor.skip_numbers_u32(IN_EVENT, tokens)?;
            return Ok(());
        }
        cursor.skip(IN_EVENT)
    }
}

/// The nesting depth of an event's values, and of the events themselves.
const IN_EVENT: u32 = 1;
const IN_BATCH: u32 = 0;

/// An element of a payload's array of events.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // lives for a moment, and nearly always is an event
pub enum Element<'a> {
    Event(RawEvent<'a>),
    /// No event; the text says why.
    Other(&'static str),
}

/// A payload that is being walked: the head has been read.
#[derive(Debug)]
pub struct Payload<'a> {
    /// The engine's clock, seconds.
    pub clock_s: f64,
    /// The number of elements that `next` has to be called for before `close`.
    pub events: u32,
    payload: &'a [u8],
    cursor: Cursor<'a>,
    elements_behind: u32,
    array_fields: fn(&str) -> &'static [Field],
}

impl<'a> Payload<'a> {
    /// Reads the head. `array_fields`: the order of the fields of array-shaped events, by type.
    pub fn open(
        payload: &'a [u8],
        array_fields: fn(&str) -> &'static [Field],
    ) -> Result<Self, Malformed> {
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
        let clock_s = match cursor.head()? {
            Head::Float(clock_s) => clock_s,
            Head::Int(clock_s) => clock_s.wide() as f64,
            _ => return Err(Malformed("a batch begins with its time".into())),
        };
        let Head::Array(events) = cursor.head()? else {
            let what = "a batch's second element is its array of events";
            return Err(Malformed(what.into()));
        };
        Ok(Self {
            clock_s,
            events,
            payload,
            cursor,
            elements_behind: elements - 2,
            array_fields,
        })
    }

    /// Skips the next element and checks it. Token ids that are plain numbers are appended to
    /// `tokens` on the way, since most of a payload is token ids.
    pub fn next(&mut self, tokens: &mut Vec<u32>) -> Result<Element<'a>, Malformed> {
        let mut inside = self.cursor;
        match inside.head()? {
            Head::Map(pairs) => {
                self.cursor = inside;
                self.map_event(pairs, tokens)
            }
            Head::Array(elements) if elements > 0 => {
                self.cursor = inside;
                self.array_event(elements, tokens)
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
                Some(field) => event.record(field, &mut self.cursor, tokens)?,
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
        elements: u32,
        tokens: &mut Vec<u32>,
    ) -> Result<Element<'a>, Malformed> {
        let mut event = RawEvent::new(self.payload, Some(elements - 1));
        event.record(Field::Type, &mut self.cursor, tokens)?;
        let kind = match event.field(Field::Type)?.0 {
            Head::Text(kind) => Some(kind),
            _ => None,
        };
        let fields = kind.map_or(&[][..], self.array_fields);
        for position in 0..elements as usize - 1 {
            match fields.get(position) {
                Some(field) => event.record(*field, &mut self.cursor, tokens)?,
                None => self.cursor.skip(IN_EVENT)?,
            }
        }
        let Some(kind) = kind else {
            return Ok(Element::Other("an event that does not begin with its type"));
        };
        event.kind = kind;
        Ok(Element::Event(event))
    }

    /// Checks the elements behind the events; returns the rank, if the message names it. Only now is
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
