//! Why a record is rejected: a reason to count, and a sentence for the sender and the operator.

use kvatlas_wire::frame::FrameError;

use super::decode::DecodeError;
use crate::counters::Count;

/// A rejected record.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub count: Count,
    pub text: String,
}

impl From<DecodeError> for Rejection {
    fn from(error: DecodeError) -> Self {
        let count = match error {
            DecodeError::Frame(FrameError::Foreign) => Count::RejectedForeign,
            DecodeError::Frame(FrameError::UnknownVersion(_)) => Count::RejectedVersion,
            DecodeError::Frame(FrameError::Corrupt) => Count::RejectedCorrupt,
            DecodeError::Malformed(_) => Count::RejectedMalformed,
            DecodeError::TooLarge => Count::RejectedTooLarge,
        };
        Self {
            count,
            text: error.to_string(),
        }
    }
}
