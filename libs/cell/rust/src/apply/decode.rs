//! Decodes a record's bytes into the sequencer's input. All checks of form happen here, before anything of a
//! record is used.

use std::fmt;
use std::ops::Range;

use kvatlas_events::sequencer::{Events, Incarnation, ShutdownReason, SnapshotPart, TierDigest};
use kvatlas_index::{Tier, WorkerKey};
use kvatlas_wire::frame::{self, FrameError};
use kvatlas_wire::protobuf::{Fields, Malformed, Value};
use kvatlas_wire::v1;
use prost::Message as _;

/// Largest record, in bytes.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Most events of one batch.
pub const EVENTS_MAX: usize = 4_096;
/// Most hashes of one batch, or of one snapshot part.
pub const HASHES_MAX: usize = 65_536;

/// Why a record cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// The frame is foreign or damaged.
    Frame(FrameError),
    /// The payload is not a valid `Batch`.
    Malformed(Malformed),
    /// The record, its events or its hashes exceed a limit.
    TooLarge,
}

impl From<Malformed> for DecodeError {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame(error) => error.fmt(f),
            Self::Malformed(error) => error.fmt(f),
            Self::TooLarge => write!(
                f,
                "too large: a record has at most {RECORD_BYTES_MAX} bytes, {EVENTS_MAX} events and {HASHES_MAX} hashes"
            ),
        }
    }
}

/// The sender of a record, its worker, and the terms of its cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// The worker.
    pub worker: WorkerKey,
    /// The epoch, and the publisher process.
    pub incarnation: Incarnation,
    /// The cell's name.
    pub cell: &'a str,
    /// The cell's model.
    pub model: &'a str,
    /// Tokens per block.
    pub block_size: u32,
    /// The hash contract.
    pub hash_contract: &'a str,
}

/// One event; its hashes are a range of [`EventList::hashes`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The worker holds these blocks from now on.
    Store(Tier, Range<usize>),
    /// The worker no longer holds these blocks.
    Remove(Tier, Range<usize>),
    /// The worker holds nothing any more on this tier, or on any tier.
    Clear(Option<Tier>),
    /// The epoch ends.
    Shutdown(ShutdownReason),
}

/// The events of one batch, and all their hashes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EventList {
    /// The events, in order.
    pub events: Vec<Event>,
    /// The hashes of all events.
    pub hashes: Vec<u64>,
}

/// The content of a record.
#[derive(Debug)]
pub enum Body {
    /// Numbered events.
    Events(Events<EventList>),
    /// One part of a snapshot of the worker's whole set.
    Snapshot(SnapshotPart),
    /// A sign of life of the publisher, with its facts.
    Heartbeat(Box<v1::Heartbeat>),
}

/// A well-formed record. Whether it belongs to this cell is not checked yet.
#[derive(Debug)]
pub struct Record<'a> {
    /// Sender, worker and terms.
    pub header: Header<'a>,
    /// Its content.
    pub body: Body,
}

/// Decodes one record.
///
/// # Errors
/// [`DecodeError`] says why; nothing of such a record may be used.
pub fn decode(record: &[u8]) -> Result<Record<'_>, DecodeError> {
    decode_into(record, EventList::default())
}

/// As [`decode`], with an empty `list` whose memory is reused for the record's events.
pub(crate) fn decode_into(record: &[u8], mut list: EventList) -> Result<Record<'_>, DecodeError> {
    if record.len() > RECORD_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    let payload = frame::open(record).map_err(DecodeError::Frame)?;
    let (mut header, mut first_event_id) = (None, 0);
    let (mut snapshot, mut heartbeat) = (None, None);
    for field in Fields::of(payload) {
        match field? {
            (1, value) => header = Some(value.bytes()?),
            (2, value) => first_event_id = value.varint()?,
            (3, value) => list.push(value.bytes()?)?,
            (4, value) => snapshot = Some(value.bytes()?),
            (5, value) => heartbeat = Some(value.bytes()?),
            _ => {}
        }
    }
    let header = read_header(header.ok_or(Malformed("no header"))?)?;
    let body = match (list.events.is_empty(), snapshot, heartbeat) {
        (false, None, None) => Body::Events(number_events(list, first_event_id)?),
        (true, Some(bytes), None) => Body::Snapshot(read_snapshot(bytes)?),
        (true, None, Some(bytes)) => {
            let heartbeat = v1::Heartbeat::decode(bytes)
                .map_err(|_| Malformed("a heartbeat cannot be decoded"))?;
            tier_digests(&heartbeat.digests)?;
            Body::Heartbeat(Box::new(heartbeat))
        }
        _ => return Err(Malformed("not exactly one of events, snapshot and heartbeat").into()),
    };
    Ok(Record { header, body })
}

/// Digests by tier number. A tier that is not named is empty.
pub fn tier_digests(named: &[v1::TierDigest]) -> Result<[TierDigest; Tier::COUNT], Malformed> {
    let mut digests = [TierDigest::default(); Tier::COUNT];
    for digest in named {
        let tier = u32::try_from(digest.tier).ok().and_then(known_tier);
        let tier = tier.ok_or(Malformed("a digest of an unknown tier"))?;
        digests[tier as usize] = TierDigest {
            blocks: digest.blocks,
            digest: digest.digest,
        };
    }
    Ok(digests)
}

fn known_tier(number: u32) -> Option<Tier> {
    Tier::ALL.get(number.checked_sub(1)? as usize).copied()
}

fn read_tier(value: Value<'_>) -> Result<Tier, Malformed> {
    known_tier(value.u32()?).ok_or(Malformed("an unknown tier"))
}

fn read_header(bytes: &[u8]) -> Result<Header<'_>, Malformed> {
    let mut header = Header {
        worker: WorkerKey {
            worker_id: 0,
            dp_rank: 0,
        },
        incarnation: Incarnation {
            epoch: 0,
            instance: 0,
        },
        cell: "",
        model: "",
        block_size: 0,
        hash_contract: "",
    };
    let mut has_worker = false;
    for field in Fields::of(bytes) {
        match field? {
            (1, value) => {
                has_worker = true;
                for part in Fields::of(value.bytes()?) {
                    match part? {
                        (1, value) => header.worker.worker_id = value.fixed64()?,
                        (2, value) => header.worker.dp_rank = value.u32()?,
                        _ => {}
                    }
                }
            }
            (2, value) => header.incarnation.epoch = value.varint()?,
            (3, value) => header.incarnation.instance = value.fixed64()?,
            (4, value) => header.cell = value.text()?,
            (5, value) => header.model = value.text()?,
            (6, value) => header.block_size = value.u32()?,
            (7, value) => header.hash_contract = value.text()?,
            _ => {}
        }
    }
    if !has_worker {
        return Err(Malformed("the header names no worker"));
    }
    if header.incarnation.epoch == 0 {
        return Err(Malformed("the header names no epoch"));
    }
    Ok(header)
}

impl EventList {
    fn push(&mut self, event: &[u8]) -> Result<(), DecodeError> {
        if self.events.len() == EVENTS_MAX {
            return Err(DecodeError::TooLarge);
        }
        let mut read = None;
        for field in Fields::of(event) {
            let (kind, value) = field?;
            let inner = match kind {
                1..=4 => value.bytes()?,
                _ => continue,
            };
            read = Some(match kind {
                1 => self
                    .read_hashes(inner, 2, 3)
                    .map(|(tier, held)| Event::Store(tier, held))?,
                2 => self
                    .read_hashes(inner, 1, 2)
                    .map(|(tier, held)| Event::Remove(tier, held))?,
                3 => Event::Clear(read_clear(inner)?),
                _ => Event::Shutdown(read_shutdown(inner)?),
            });
        }
        self.events
            .push(read.ok_or(Malformed("an event of no known kind"))?);
        Ok(())
    }

    fn read_hashes(
        &mut self,
        message: &[u8],
        hashes_field: u32,
        tier_field: u32,
    ) -> Result<(Tier, Range<usize>), DecodeError> {
        let start = self.hashes.len();
        let mut tier = None;
        for field in Fields::of(message) {
            let (number, value) = field?;
            if number == hashes_field {
                extend(&mut self.hashes, value.fixed64s()?)?;
            } else if number == tier_field {
                tier = Some(read_tier(value)?);
            }
        }
        Ok((
            tier.ok_or(Malformed("an event names no tier"))?,
            start..self.hashes.len(),
        ))
    }
}

fn extend(hashes: &mut Vec<u64>, column: &[u8]) -> Result<(), DecodeError> {
    if hashes.len() + column.len() / 8 > HASHES_MAX {
        return Err(DecodeError::TooLarge);
    }
    hashes.extend(column.chunks_exact(8).map(|word| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        u64::from_le_bytes(bytes)
    }));
    Ok(())
}

fn read_clear(message: &[u8]) -> Result<Option<Tier>, Malformed> {
    let mut tier = None;
    for field in Fields::of(message) {
        if let (1, value) = field? {
            tier = Some(read_tier(value)?);
        }
    }
    Ok(tier)
}

fn read_shutdown(message: &[u8]) -> Result<ShutdownReason, Malformed> {
    let mut reason = 0;
    for field in Fields::of(message) {
        if let (1, value) = field? {
            reason = value.u32()?;
        }
    }
    match reason {
        1 => Ok(ShutdownReason::EngineGone),
        2 => Ok(ShutdownReason::PublisherLeaving),
        _ => Err(Malformed("a shutdown of no known reason")),
    }
}

/// Checks the event ids, and that a shutdown is the last event.
fn number_events(list: EventList, first_event_id: u64) -> Result<Events<EventList>, Malformed> {
    // `EVENTS_MAX` fits a u32.
    let count = list.events.len() as u32;
    if first_event_id == 0 || first_event_id.checked_add(u64::from(count)).is_none() {
        return Err(Malformed("the first event id is out of range"));
    }
    let first_shutdown = list
        .events
        .iter()
        .position(|event| matches!(event, Event::Shutdown(_)));
    let shutdown = match (first_shutdown, list.events.last()) {
        (None, _) => None,
        (Some(at), Some(Event::Shutdown(reason))) if at + 1 == list.events.len() => Some(*reason),
        _ => return Err(Malformed("events after a shutdown")),
    };
    Ok(Events {
        first_event_id,
        count,
        shutdown,
        payload: list,
    })
}

fn read_snapshot(message: &[u8]) -> Result<SnapshotPart, DecodeError> {
    let (mut as_of, mut part, mut parts) = (0, 0, 0);
    let (mut tier, mut hashes, mut digests) = (None, Vec::new(), Vec::new());
    for field in Fields::of(message) {
        match field? {
            (1, value) => as_of = value.varint()?,
            (2, value) => part = value.u32()?,
            (3, value) => parts = value.u32()?,
            (4, value) => tier = Some(read_tier(value)?),
            (5, value) => extend(&mut hashes, value.fixed64s()?)?,
            (6, value) => digests.push(
                v1::TierDigest::decode(value.bytes()?)
                    .map_err(|_| Malformed("a digest cannot be decoded"))?,
            ),
            _ => {}
        }
    }
    if part >= parts {
        return Err(Malformed("a snapshot's part is not below its parts").into());
    }
    if as_of == u64::MAX {
        return Err(Malformed("a snapshot's event id is out of range").into());
    }
    let tier = match tier {
        Some(tier) => tier as usize,
        // The only part of an empty set names no tier.
        None if hashes.is_empty() => 0,
        None => return Err(Malformed("a snapshot's part names no tier").into()),
    };
    let digests = tier_digests(&digests)?;
    Ok(SnapshotPart {
        as_of,
        part,
        parts,
        tier,
        hashes,
        digests,
    })
}
