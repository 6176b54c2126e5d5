//! Encodes `FindMatchesRequest` with gRPC's prefix, and decodes `FindMatchesResponse`.
//!
//! ```text
//! ┌───────────────┬───────────────────┬─────────────────────────────────────────────┐
//! │ 0: not        │ length, u32 BE    │ the scalar fields (prost) ‖ tag ‖ length ‖  │
//! │ compressed    │                   │ the hashes as they lie in memory            │
//! └───────────────┴───────────────────┴─────────────────────────────────────────────┘
//! ```
//!
//! A packed `fixed64` field is the little-endian array itself, so thousands of hashes are encoded by one
//! copy. Protobuf allows fields in any order; the hashes come last.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use kvatlas_wire::v1::{FindMatchesRequest, FindMatchesResponse};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;

use crate::grpc::PREFIX_BYTES;

const CHUNK_HASHES_TAG: u32 = 4;
const SEQUENCE_HASHES_TAG: u32 = 5;

/// Settings that must be equal in a whole cell; "" and 0 are not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellTerms {
    /// Model that the cell's engines serve.
    pub model: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Name of the hash contract.
    pub hash_contract: String,
}

impl fmt::Display for CellTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "model '{}', block size {}, hash contract '{}'",
            self.model, self.block_size, self.hash_contract
        )
    }
}

/// A query; see `FindMatchesRequest`.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// Hashes of the prompt's full blocks, head first.
    pub hashes: &'a [u64],
    /// Whether `hashes` are chunk hashes; else they are sequence hashes.
    pub chunks: bool,
    /// Largest number of workers in the answer; 0: all.
    pub limit: u32,
    /// Verify every depth.
    pub exact: bool,
}

/// Encodes queries to one cell, whose terms it has encoded once.
pub struct Encoder {
    terms: Box<[u8]>,
}

impl Encoder {
    /// Makes an encoder of queries with these terms.
    pub fn new(terms: &CellTerms) -> Self {
        let terms = FindMatchesRequest {
            model: terms.model.clone(),
            block_size: terms.block_size,
            hash_contract: terms.hash_contract.clone(),
            ..FindMatchesRequest::default()
        };
        Self {
            terms: terms.encode_to_vec().into(),
        }
    }

    /// Encodes the query as one gRPC message.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: longer than gRPC allows.
    pub fn encode(&self, query: &Query<'_>) -> Result<Bytes, Status> {
        let options = FindMatchesRequest {
            limit: query.limit,
            exact: query.exact,
            ..FindMatchesRequest::default()
        };
        let tag = if query.chunks {
            CHUNK_HASHES_TAG
        } else {
            SEQUENCE_HASHES_TAG
        };
        let packed = size_of_val(query.hashes);
        let head = key_len(tag) + encoded_len_varint(packed as u64);
        let scalars = self.terms.len() + options.encoded_len();
        let body = scalars + if packed == 0 { 0 } else { head + packed };
        let length = u32::try_from(body).map_err(|_| {
            Status::invalid_argument("the prompt has too many blocks for one query")
        })?;
        let mut message = BytesMut::with_capacity(PREFIX_BYTES + body);
        message.put_u8(0);
        message.put_u32(length);
        message.put_slice(&self.terms);
        // A BytesMut grows, so encoding into it cannot run out of space.
        options.encode_raw(&mut message);
        if packed != 0 {
            encode_key(tag, WireType::LengthDelimited, &mut message);
            encode_varint(packed as u64, &mut message);
            put_le(query.hashes, &mut message);
        }
        Ok(message.freeze())
    }
}

/// Decodes the answer from the body of a gRPC response; its columns have equal lengths.
///
/// # Errors
/// INTERNAL: malformed.
pub fn decode(body: &[u8]) -> Result<FindMatchesResponse, Status> {
    let (prefix, message) = body
        .split_first_chunk::<PREFIX_BYTES>()
        .ok_or_else(|| Status::internal("the server's answer holds no message"))?;
    let [packed, length @ ..] = *prefix;
    if packed != 0 {
        return Err(Status::internal("the server's answer is compressed"));
    }
    if u32::from_be_bytes(length) as usize != message.len() {
        return Err(Status::internal("the server's answer is cut or too long"));
    }
    let response = FindMatchesResponse::decode(message)
        .map_err(|error| Status::internal(format!("malformed answer: {error}")))?;
    let workers = response.worker_ids.len();
    if response.dp_ranks.len() != workers || response.depths.len() != workers {
        return Err(Status::internal("the answer's columns differ in length"));
    }
    Ok(response)
}

fn put_le(hashes: &[u64], message: &mut BytesMut) {
    // One reservation for all keeps the loop free of checks, so it compiles to a copy.
    message.reserve(size_of_val(hashes));
    for chunk in hashes.chunks(64) {
        let mut bytes = [0; 512];
        for (word, hash) in bytes.chunks_exact_mut(8).zip(chunk) {
            word.copy_from_slice(&hash.to_le_bytes());
        }
        message.put_slice(&bytes[..size_of_val(chunk)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_decodes_as_the_generated_message() {
        let encoder = Encoder::new(&CellTerms {
            model: "m".into(),
            block_size: 16,
            hash_contract: "c".into(),
        });
        let many: Vec<u64> = (0..1_000).map(|i| u64::MAX - i * i).collect();
        for hashes in [&many[..], &many[..64], &many[..1], &[]] {
            for chunks in [true, false] {
                let query = Query {
                    hashes,
                    chunks,
                    limit: 3,
                    exact: true,
                };
                let message = encoder.encode(&query).unwrap();
                assert_eq!(message[0], 0);
                assert_eq!(message[1..5], (message.len() as u32 - 5).to_be_bytes());
                let (held, none) = (hashes.to_vec(), Vec::new());
                let (chunk_hashes, sequence_hashes) =
                    if chunks { (held, none) } else { (none, held) };
                let expected = FindMatchesRequest {
                    model: "m".into(),
                    block_size: 16,
                    hash_contract: "c".into(),
                    chunk_hashes,
                    sequence_hashes,
                    limit: 3,
                    exact: true,
                };
                assert_eq!(FindMatchesRequest::decode(&message[5..]), Ok(expected));
            }
        }
    }

    fn framed(response: &FindMatchesResponse) -> Vec<u8> {
        let body = response.encode_to_vec();
        let mut framed = vec![0];
        framed.extend_from_slice(&(body.len() as u32).to_be_bytes());
        framed.extend_from_slice(&body);
        framed
    }

    #[test]
    fn answers_decode() {
        let response = FindMatchesResponse {
            worker_ids: vec![u64::MAX, 0],
            dp_ranks: vec![0, 7],
            depths: vec![9, 1],
        };
        assert_eq!(decode(&framed(&response)).unwrap(), response);
        let none = FindMatchesResponse::default();
        assert_eq!(decode(&framed(&none)).unwrap(), none);
    }

    #[test]
    fn malformed_answers_are_refused() {
        let response = FindMatchesResponse {
            worker_ids: vec![1],
            dp_ranks: vec![1],
            depths: vec![1],
        };
        let good = framed(&response);
        for length in 0..good.len() {
            assert!(decode(&good[..length]).is_err(), "cut to {length}");
        }
        let mut compressed = good.clone();
        compressed[0] = 1;
        assert!(decode(&compressed).is_err());
        let uneven = FindMatchesResponse {
            depths: vec![],
            ..response
        };
        assert!(decode(&framed(&uneven)).is_err());
    }
}
