//! Checked access to the fields of raw events, equal for all engines.
//!
//! Each function takes what msgpack holds and returns what the model holds, or a `Refusal`, which
//! becomes one `Unindexable`.

use std::ops::Range;

use crate::model::{EngineKey, Reason, Refusal, Tier};
use crate::msgpack::{Cursor, Head, Integer, Malformed};
use crate::payload::{Field, RawEvent};

impl Refusal {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            block_size: None,
        }
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Reason::MalformedEvent, detail)
    }
}

impl From<Malformed> for Refusal {
    /// Cannot come: fields are read out of messages that were checked throughout.
    fn from(error: Malformed) -> Self {
        Self::malformed(error.0)
    }
}

/// How many blocks the event speaks of, as far as it says.
pub fn announced_blocks(event: &RawEvent<'_>) -> usize {
    match event.field(Field::BlockHashes) {
        Ok((Head::Array(count), _)) => count as usize,
        _ => 0,
    }
}

/// Appends the normalised `block_hashes`; returns how many there are.
pub fn block_hashes(event: &RawEvent<'_>, into: &mut Vec<EngineKey>) -> Result<usize, Refusal> {
    let (Head::Array(count), mut cursor) = event.field(Field::BlockHashes)? else {
        return Err(Refusal::malformed("block_hashes is no array"));
    };
    into.reserve(count as usize); // they are there: the event has been passed over
    for _ in 0..count {
        into.push(match cursor.number_u64() {
            Some(hash) => EngineKey::from_int(hash), // nearly always
            None => engine_key(cursor.head()?)?,
        });
    }
    Ok(count as usize)
}

/// The normalised `parent_block_hash`.
pub fn parent_hash(event: &RawEvent<'_>) -> Result<Option<EngineKey>, Refusal> {
    match event.field(Field::ParentBlockHash)?.0 {
        Head::Nil => Ok(None),
        head => engine_key(head).map(Some),
    }
}

/// One block hash: an integer modulo 2^64, or a digest.
fn engine_key(head: Head<'_>) -> Result<EngineKey, Refusal> {
    match head {
        Head::Int(Integer::Unsigned(hash)) => Ok(EngineKey::from_int(hash)),
        Head::Int(Integer::Negative(hash)) => Ok(EngineKey::from_int(hash as u64)),
        Head::Bytes(digest) if !digest.is_empty() => Ok(EngineKey::from_bytes(digest)),
        other => Err(Refusal::malformed(format!(
            "a block hash of type {}",
            other.type_name()
        ))),
    }
}

/// A string field; the empty string means none, as absence does.
pub fn optional_text<'a>(event: &RawEvent<'a>, field: Field) -> Result<Option<&'a str>, Refusal> {
    match event.field(field)?.0 {
        Head::Nil | Head::Text("") => Ok(None),
        Head::Text(text) => Ok(Some(text)),
        other => Err(mistyped(field, other)),
    }
}

/// An integer field.
fn optional_number(event: &RawEvent<'_>, field: Field) -> Result<Option<Integer>, Refusal> {
    match event.field(field)?.0 {
        Head::Nil => Ok(None),
        Head::Int(number) => Ok(Some(number)),
        other => Err(mistyped(field, other)),
    }
}

fn mistyped(field: Field, head: Head<'_>) -> Refusal {
    Refusal::malformed(format!("{} is of type {}", field.name(), head.type_name()))
}

/// The cache group that the event speaks of.
pub fn group(event: &RawEvent<'_>) -> Result<Option<i128>, Refusal> {
    Ok(optional_number(event, Field::GroupIdx)?.map(Integer::wide))
}

/// The event's `block_size`; 0 stands in placeholders.
pub fn block_size(event: &RawEvent<'_>) -> Result<u64, Refusal> {
    match optional_number(event, Field::BlockSize)? {
        Some(Integer::Unsigned(size)) => Ok(size),
        _ => Err(Refusal::malformed("block_size is no size")),
    }
}

/// How many `token_ids` there are, and where they begin in the message.
pub fn token_list<'a>(event: &RawEvent<'a>) -> Result<(usize, Cursor<'a>), Refusal> {
    match event.field(Field::TokenIds)? {
        (Head::Array(count), cursor) => Ok((count as usize, cursor)),
        _ => Err(Refusal::malformed("token_ids is no array")),
    }
}

/// The tier that `medium` and `locality` name; no medium means the device.
pub fn tier(event: &RawEvent<'_>) -> Result<Tier, Refusal> {
    let medium = optional_text(event, Field::Medium)?;
    let locality = optional_text(event, Field::Locality)?;
    let Some(named) = medium.map_or(Some(Tier::Device), named_tier) else {
        let detail = format!("medium {:?}", medium.unwrap_or_default());
        return Err(Refusal::new(Reason::UnknownTier, detail));
    };
    if locality.is_some_and(|locality| locality.to_uppercase() == "REMOTE") {
        return Ok(Tier::Remote);
    }
    Ok(named)
}

/// Who uses which name stands in the reference, `kvatlas_engines.fields`.
fn named_tier(medium: &str) -> Option<Tier> {
    Some(match medium {
        "GPU" => Tier::Device, // nearly always
        _ => match medium.to_lowercase().as_str() {
            "gpu" => Tier::Device,
            "cpu" | "cpu_pinned" => Tier::Host,
            "disk" | "storage" | "fs" => Tier::Disk,
            "obj" | "external" => Tier::Remote,
            _ => return None,
        },
    })
}

/// Where the plain token ids of a list are in their column: since the message was passed over, or
/// since they were appended now.
pub fn token_ids(
    event: &RawEvent<'_>,
    (count, list): (usize, Cursor<'_>),
    column: &mut Vec<u32>,
) -> Result<Range<usize>, Refusal> {
    if let Some(read) = &event.tokens {
        return Ok(read.clone());
    }
    let start = column.len();
    tokens_u32(count, list, column)?;
    Ok(start..column.len())
}

/// Appends plain token ids.
fn tokens_u32(count: usize, mut cursor: Cursor<'_>, into: &mut Vec<u32>) -> Result<(), Refusal> {
    let mut read = 0;
    loop {
        read += cursor.numbers_u32(count - read, into);
        if read == count {
            return Ok(());
        }
        into.push(odd_token(cursor.head()?)?);
        read += 1;
    }
}

/// A token that is not written in the shortest way, or is none.
fn odd_token(head: Head<'_>) -> Result<u32, Refusal> {
    match head {
        Head::Int(token) => u32::try_from(token.wide()).ok(),
        Head::Bool(token) => Some(u32::from(token)), // as Python's integers have it
        _ => None,
    }
    .ok_or_else(|| {
        let detail = format!("token ids: {} of no 32 bits", head.type_name());
        Refusal::new(Reason::BadTokens, detail)
    })
}

/// Appends the plain tokens of bigram ids `[[t0, t1], [t1, t2], …]`: the first of each pair.
pub fn bigrams_u32(
    (count, cursor): (usize, Cursor<'_>),
    column: &mut Vec<u32>,
) -> Result<Range<usize>, Refusal> {
    let broken = |detail: &str| Refusal::new(Reason::BrokenBigrams, detail);
    let mut pairs = cursor;
    for _ in 0..count {
        let mut pair = pairs;
        if pair.head()? != Head::Array(2) {
            return Err(broken("a bigram that is no pair"));
        }
        pairs.skip(0)?;
    }
    let mut flat = Vec::with_capacity(2 * count);
    let mut pairs = cursor;
    for _ in 0..count {
        pairs.head()?;
        tokens_u32(2, pairs, &mut flat)?;
        pairs.skip(0)?;
        pairs.skip(0)?;
    }
    if flat.windows(3).step_by(2).any(|run| run[1] != run[2]) {
        return Err(broken("bigrams that do not follow one another"));
    }
    let start = column.len();
    column.extend(flat.iter().step_by(2));
    Ok(start..column.len())
}

/// Refuses any number of tokens but that of so many blocks.
pub fn in_blocks(tokens: usize, blocks: usize, size: usize) -> Result<(), Refusal> {
    if Some(tokens) == blocks.checked_mul(size) {
        return Ok(());
    }
    Err(Refusal::new(
        Reason::LengthMismatch,
        format!("{tokens} tokens for {blocks} blocks of {size}"),
    ))
}
