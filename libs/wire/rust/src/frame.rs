//! The frame of a record: a magic with the schema version, a checksum, then one encoded `Batch`.
//!
//! A log may hold foreign, truncated or damaged messages. The frame detects them before anything of them is
//! used; protobuf alone would accept most of them.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// "KVA" and the schema version.
pub const MAGIC: [u8; 4] = *b"KVA\x01";
/// Bytes of the frame, before the payload.
pub const FRAME_LEN: usize = 12;

/// Why a message is not a valid record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// Too short, or another magic: a message of another program.
    Foreign,
    /// A record of a schema version that this build does not know.
    UnknownVersion(u8),
    /// The payload does not match its checksum.
    Corrupt,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(f, "not a kvatlas record"),
            Self::UnknownVersion(v) => write!(f, "record of unknown schema version {v}"),
            Self::Corrupt => write!(f, "corrupt record: its checksum does not match"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Frames `payload` as a record.
#[must_use]
pub fn seal(payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(FRAME_LEN + payload.len());
    record.extend_from_slice(&MAGIC);
    record.extend_from_slice(&xxh3_64(payload).to_le_bytes());
    record.extend_from_slice(payload);
    record
}

/// The payload of `record`, once its frame and checksum are verified.
///
/// # Errors
/// [`FrameError`] names what is wrong; nothing of such a record may be used.
pub fn open(record: &[u8]) -> Result<&[u8], FrameError> {
    let (magic, rest) = record.split_first_chunk::<4>().ok_or(FrameError::Foreign)?;
    if magic[..3] != MAGIC[..3] {
        return Err(FrameError::Foreign);
    }
    if magic[3] != MAGIC[3] {
        return Err(FrameError::UnknownVersion(magic[3]));
    }
    let (sum, payload) = rest.split_first_chunk::<8>().ok_or(FrameError::Corrupt)?;
    if u64::from_le_bytes(*sum) != xxh3_64(payload) {
        return Err(FrameError::Corrupt);
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_payload_opens() {
        assert_eq!(open(&seal(b"batch")), Ok(&b"batch"[..]));
        assert_eq!(open(&seal(b"")), Ok(&b""[..]));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let record = seal(b"some payload");
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        let record = seal(b"some payload");
        for len in 0..record.len() {
            assert!(open(&record[..len]).is_err(), "length {len}");
        }
    }

    #[test]
    fn the_three_errors_are_told_apart() {
        assert_eq!(open(b"hello, world"), Err(FrameError::Foreign));
        let mut record = seal(b"x");
        record[3] = 2;
        assert_eq!(open(&record), Err(FrameError::UnknownVersion(2)));
        let mut record = seal(b"x");
        *record.last_mut().unwrap() ^= 1;
        assert_eq!(open(&record), Err(FrameError::Corrupt));
    }
}
