//! Encodes records of events straight from columns of hashes: no message is built, and no hash is copied twice.
//!
//! The bytes are exactly those of the messages of `events.proto`, with the fields in the order of their
//! numbers. The tests compare them with the generated code.

use xxhash_rust::xxh3::xxh3_64;

use crate::frame::{FRAME_LEN, MAGIC};
use crate::protobuf::{put_varint, varint_len};

/// One event with borrowed hashes. Tiers are the numbers of `kvatlas.v1.Tier`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventColumns<'a> {
    /// Blocks of a chain below `parent` are stored.
    Store {
        /// Hash of the block before the first; None: the first hash is a prompt's first block.
        parent: Option<u64>,
        /// Sequence hashes, head first.
        hashes: &'a [u64],
        /// The tier that holds them.
        tier: u8,
    },
    /// Blocks are removed from a tier.
    Remove {
        /// Sequence hashes, tail first.
        hashes: &'a [u64],
        /// The tier that held them.
        tier: u8,
    },
    /// A tier, or all tiers, are emptied.
    Clear {
        /// None: all tiers.
        tier: Option<u8>,
    },
}

const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const BYTES: u8 = 2;

/// Encodes a batch of numbered events as a record. `header` is an encoded `Header`.
pub fn events_record<'a>(
    header: &[u8],
    first_event_id: u64,
    events: impl Iterator<Item = EventColumns<'a>> + Clone,
) -> Vec<u8> {
    let sizes = events
        .clone()
        .map(|event| message_len(EventColumns::len(event)));
    let mut record = Vec::with_capacity(FRAME_LEN + header.len() + 32 + sizes.sum::<usize>());
    record.extend_from_slice(&MAGIC);
    record.extend_from_slice(&[0; FRAME_LEN - MAGIC.len()]);
    head(&mut record, 1, header.len());
    record.extend_from_slice(header);
    record.push(2 << 3 | VARINT);
    put_varint(&mut record, first_event_id);
    for event in events {
        head(&mut record, 3, event.len());
        event.write(&mut record);
    }
    let sum = xxh3_64(&record[FRAME_LEN..]);
    record[MAGIC.len()..FRAME_LEN].copy_from_slice(&sum.to_le_bytes());
    record
}

impl EventColumns<'_> {
    /// Bytes of the encoded `Event`.
    fn len(self) -> usize {
        message_len(self.kind_len())
    }

    /// Bytes of the encoded `Store`, `Remove` or `Clear`.
    fn kind_len(self) -> usize {
        match self {
            Self::Store { parent, hashes, .. } => parent.map_or(0, |_| 9) + packed_len(hashes) + 2,
            Self::Remove { hashes, .. } => packed_len(hashes) + 2,
            Self::Clear { tier } => tier.map_or(0, |_| 2),
        }
    }

    fn write(self, record: &mut Vec<u8>) {
        match self {
            Self::Store {
                parent,
                hashes,
                tier,
            } => {
                head(record, 1, self.kind_len());
                if let Some(parent) = parent {
                    record.push(1 << 3 | FIXED_64);
                    record.extend_from_slice(&parent.to_le_bytes());
                }
                packed(record, 2, hashes);
                record.extend_from_slice(&[3 << 3 | VARINT, tier]);
            }
            Self::Remove { hashes, tier } => {
                head(record, 2, self.kind_len());
                packed(record, 1, hashes);
                record.extend_from_slice(&[2 << 3 | VARINT, tier]);
            }
            Self::Clear { tier } => {
                head(record, 3, self.kind_len());
                if let Some(tier) = tier {
                    record.extend_from_slice(&[1 << 3 | VARINT, tier]);
                }
            }
        }
    }
}

/// Bytes of a field that holds a message of `length` bytes.
fn message_len(length: usize) -> usize {
    1 + varint_len(length as u64) + length
}

fn packed_len(hashes: &[u64]) -> usize {
    if hashes.is_empty() {
        return 0;
    }
    message_len(size_of_val(hashes))
}

fn packed(record: &mut Vec<u8>, field: u8, hashes: &[u64]) {
    if hashes.is_empty() {
        return;
    }
    head(record, field, size_of_val(hashes));
    for hash in hashes {
        record.extend_from_slice(&hash.to_le_bytes());
    }
}

/// Appends the key and the length of a field of `length` bytes.
fn head(record: &mut Vec<u8>, field: u8, length: usize) {
    record.push(field << 3 | BYTES);
    put_varint(record, length as u64);
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::frame;
    use crate::v1::{Batch, Clear, Event, Header, Remove, Store, event::Kind};

    fn message(event: EventColumns<'_>) -> Event {
        let kind = match event {
            EventColumns::Store {
                parent,
                hashes,
                tier,
            } => Kind::Store(Store {
                parent_sequence_hash: parent,
                sequence_hashes: hashes.to_vec(),
                tier: tier.into(),
            }),
            EventColumns::Remove { hashes, tier } => Kind::Remove(Remove {
                sequence_hashes: hashes.to_vec(),
                tier: tier.into(),
            }),
            EventColumns::Clear { tier } => Kind::Clear(Clear {
                tier: tier.map(i32::from),
            }),
        };
        Event { kind: Some(kind) }
    }

    #[test]
    fn the_bytes_are_those_of_the_messages() {
        let many: Vec<u64> = (0..40_000_u64)
            .map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15))
            .collect();
        let header = Header {
            epoch: 5,
            model: "m".repeat(200),
            ..Header::default()
        };
        for length in [0, 1, 2, 15, 16, 17, 2_047, 2_048, 40_000] {
            let hashes = &many[..length];
            let events = [
                EventColumns::Store {
                    parent: None,
                    hashes,
                    tier: 1,
                },
                EventColumns::Store {
                    parent: Some(0),
                    hashes,
                    tier: 4,
                },
                EventColumns::Remove { hashes, tier: 2 },
                EventColumns::Clear { tier: None },
                EventColumns::Clear { tier: Some(3) },
            ];
            for first_event_id in [1, 127, 128, u64::MAX - 4] {
                let encoded = Batch {
                    header: Some(header.clone()),
                    first_event_id,
                    events: events.map(message).to_vec(),
                    ..Batch::default()
                }
                .encode_to_vec();
                let record =
                    events_record(&header.encode_to_vec(), first_event_id, events.into_iter());
                assert_eq!(frame::open(&record), Ok(&encoded[..]), "{length} hashes");
            }
        }
    }
}
