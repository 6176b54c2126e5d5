//! From a message's payload to raw events: the part that both engines and all their releases share.
//!
//! The payload is the msgpack array `[ts, [event, …], dp_rank]`; an event is a map
//! `{"type": name, field: value}` or, in older releases, an array `[name, value, …]` whose order of
//! fields is the engine's. Lengths say nothing: newer releases append, older ones are shorter. A raw
//! event is only where its fields begin; nothing of them is checked yet but that they are msgpack.

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
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "block_hashes" => Self::BlockHashes,
            "parent_block_hash" => Self::ParentBlockHash,
            "token_ids" => Self::TokenIds,
            "block_size" => Self::BlockSize,
            "lora_id" => Self::LoraId,
            "medium" => Self::Medium,
            "lora_name" => Self::LoraName,
            "extra_keys" => Self::ExtraKeys,
            "group_idx" => Self::GroupIdx,
            "kv_cache_spec_kind" => Self::SpecKind,
            "locality" => Self::Locality,
            "cache_salt" => Self::CacheSalt,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
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
#[derive(Clone, Copy, Debug)]
pub struct RawEvent<'a> {
    pub kind: &'a str,
    /// How many fields an array carried; None: it was a map. Tells old releases from new ones.
    pub positions: Option<u32>,
    payload: &'a [u8],
    /// Where the fields begin; 0, where the message itself does: absent.
    places: [u32; FIELDS],
}

impl<'a> RawEvent<'a> {
    fn new(payload: &'a [u8], positions: Option<u32>) -> Self {
        Self {
            kind: "",
            positions,
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

    fn put(&mut self, field: Field, at: usize) {
        // A message is below 4 GiB: `Document::open` has seen to it.
        self.places[field as usize] = at as u32;
    }
}

/// A payload that is msgpack throughout, and a batch.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    /// The engine's clock, seconds.
    pub ts: f64,
    /// None: the engine does not say.
    pub dp_rank: Option<u32>,
    payload: &'a [u8],
    events: Cursor<'a>,
    count: u32,
}

impl<'a> Document<'a> {
    /// Checks all of a payload.
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
        let events = cursor;
        for _ in 0..count {
            cursor.skip()?;
        }
        let mut rank = cursor;
        for _ in 2..elements {
            cursor.skip()?;
        }
        if !cursor.is_at_end() {
            return Err(Malformed("not msgpack: trailing bytes".into()));
        }
        let dp_rank = if elements > 2 {
            dp_rank(rank.head()?)?
        } else {
            None
        };
        Ok(Self {
            ts,
            dp_rank,
            payload,
            events,
            count,
        })
    }

    /// The events in order; Err: an element that is no event, and why.
    pub fn events(&self, engine: Engine) -> impl Iterator<Item = Result<RawEvent<'a>, String>> {
        let document = *self;
        let mut cursor = document.events;
        (0..document.count).map(move |_| document.event(engine, &mut cursor))
    }

    /// Reads the next event, and goes on behind it whatever it is.
    fn event(&self, engine: Engine, cursor: &mut Cursor<'a>) -> Result<RawEvent<'a>, String> {
        let mut behind = *cursor;
        let event = match cursor.head() {
            Ok(Head::Map(pairs)) => self.map_event(pairs, cursor),
            Ok(Head::Array(elements)) if elements > 0 => self.array_event(engine, elements, cursor),
            _ => Err(Malformed(
                "an event that is neither a map nor an array".into(),
            )),
        };
        // All of it has been passed over before without an error.
        if event.is_err() && behind.skip().is_ok() {
            *cursor = behind;
        }
        event.map_err(|what| what.0)
    }

    fn map_event(&self, pairs: u32, cursor: &mut Cursor<'a>) -> Result<RawEvent<'a>, Malformed> {
        let mut event = RawEvent::new(self.payload, None);
        let mut kind = None;
        for _ in 0..pairs {
            let mut key = *cursor;
            cursor.skip_key()?;
            if let Head::Text(name) = key.head()? {
                if name == "type" {
                    kind = Some(cursor.at());
                } else if let Some(field) = Field::named(name) {
                    event.put(field, cursor.at());
                }
            }
            cursor.skip()?;
        }
        let kind = kind
            .map(|at| Cursor::new(self.payload, at).head())
            .transpose()?;
        let Some(Head::Text(kind)) = kind else {
            return Err(Malformed("an event without a type".into()));
        };
        event.kind = kind;
        Ok(event)
    }

    fn array_event(
        &self,
        engine: Engine,
        elements: u32,
        cursor: &mut Cursor<'a>,
    ) -> Result<RawEvent<'a>, Malformed> {
        let mut event = RawEvent::new(self.payload, Some(elements - 1));
        let Head::Text(kind) = cursor.head()? else {
            return Err(Malformed(
                "an event that does not begin with its type".into(),
            ));
        };
        event.kind = kind;
        let order = order(engine, kind);
        for position in 0..elements as usize - 1 {
            if let Some(field) = order.get(position) {
                event.put(*field, cursor.at());
            }
            cursor.skip()?;
        }
        Ok(event)
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
