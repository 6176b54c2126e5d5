//! `FindMatches` from encoded request to encoded response.
//!
//! The call reads its hashes in place in the request, and writes the response's columns straight into the gRPC message:
//! no vectors of messages, no lock, one allocation per answer.

use std::cell::RefCell;
use std::time::Instant;

use bytes::Bytes;
use kvatlas_index::{FindOptions, Matches, Query};
use kvatlas_wire::protobuf::{Fields, Malformed, Value, put_varint, varint_len};
use tonic::{Code, Status};

use crate::cell::Cell;
use crate::counters::Count;

/// Most hashes of one request: longer than any context window.
pub const HASHES_MAX: usize = 131_072;
/// Largest request in bytes, with room for the hashes and the names.
pub const REQUEST_BYTES_MAX: usize = 8 * HASHES_MAX + (64 << 10);
/// Bytes before a gRPC message: the compression flag and the big-endian length.
pub const PREFIX_LEN: usize = 5;

thread_local! {
    static MATCHES: RefCell<Matches> = RefCell::default();
}

/// Answers an encoded `FindMatchesRequest` with a framed `FindMatchesResponse`.
///
/// # Errors
/// The status of the call.
pub fn answer(cell: &Cell, message: &[u8]) -> Result<Bytes, Status> {
    let start = Instant::now();
    let result = Request::read(message)
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))
        .and_then(|request| {
            request.check(cell)?;
            MATCHES.with_borrow_mut(|matches| {
                let limit = request.limit as usize;
                let options = FindOptions {
                    limit,
                    exact: request.exact,
                    ..FindOptions::default()
                };
                cell.find(request.query(), &options, matches);
                Ok(encode(matches))
            })
        });
    cell.counters.add(match &result {
        Ok(_) => Count::FindOk,
        Err(status) => match status.code() {
            Code::FailedPrecondition => Count::FindMismatch,
            Code::ResourceExhausted => Count::FindTooLarge,
            Code::Unavailable => Count::FindNotReady,
            _ => Count::FindInvalid,
        },
    });
    cell.find_latency.observe(start.elapsed());
    result
}

/// Checks a request's terms. A request in other terms would never match, so it fails. Empty or 0 is not checked.
///
/// # Errors
/// FAILED_PRECONDITION, which names both values.
pub fn check_terms(
    cell: &Cell,
    model: &str,
    block_size: u32,
    hash_contract: &str,
) -> Result<(), Status> {
    let config = &cell.config;
    let mismatch = |what: &str, theirs: &dyn std::fmt::Display, ours: &dyn std::fmt::Display| {
        let text = format!(
            "the request has {what} {theirs}, this cell ({}) has {ours}",
            config.cell
        );
        Err(Status::failed_precondition(text))
    };
    if !model.is_empty() && model != config.model {
        return mismatch("model", &model, &config.model);
    }
    if block_size != 0 && block_size != config.block_size {
        return mismatch("block size", &block_size, &config.block_size);
    }
    if !hash_contract.is_empty() && hash_contract != config.hash_contract {
        return mismatch("hash contract", &hash_contract, &config.hash_contract);
    }
    Ok(())
}

/// A `repeated fixed64` as little-endian bytes: borrowed if it is packed in one piece.
#[derive(Default)]
struct Column<'a> {
    borrowed: &'a [u8],
    joined: Vec<u8>,
}

impl<'a> Column<'a> {
    fn push(&mut self, value: Value<'a>) -> Result<(), Malformed> {
        let piece = value.fixed64s()?;
        if self.joined.is_empty() && self.borrowed.is_empty() {
            self.borrowed = piece;
            return Ok(());
        }
        if self.joined.is_empty() {
            self.joined.extend_from_slice(self.borrowed);
        }
        self.joined.extend_from_slice(piece);
        Ok(())
    }

    fn bytes(&self) -> &[u8] {
        if self.joined.is_empty() {
            self.borrowed
        } else {
            &self.joined
        }
    }
}

#[derive(Default)]
struct Request<'a> {
    model: &'a str,
    block_size: u32,
    hash_contract: &'a str,
    chunks: Column<'a>,
    sequences: Column<'a>,
    limit: u32,
    exact: bool,
}

impl<'a> Request<'a> {
    fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut request = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, value) => request.model = value.text()?,
                (2, value) => request.block_size = value.u32()?,
                (3, value) => request.hash_contract = value.text()?,
                (4, value) => request.chunks.push(value)?,
                (5, value) => request.sequences.push(value)?,
                (6, value) => request.limit = value.u32()?,
                (7, value) => request.exact = value.varint()? != 0,
                _ => {}
            }
        }
        Ok(request)
    }

    fn check(&self, cell: &Cell) -> Result<(), Status> {
        check_terms(cell, self.model, self.block_size, self.hash_contract)?;
        let (chunks, sequences) = (
            self.chunks.bytes().len() / 8,
            self.sequences.bytes().len() / 8,
        );
        if chunks > 0 && sequences > 0 {
            let text =
                "chunk_hashes and sequence_hashes are both given; one of the two is expected";
            return Err(Status::invalid_argument(text));
        }
        if chunks.max(sequences) > HASHES_MAX {
            return Err(too_large());
        }
        if !cell.is_ready() {
            return Err(Status::unavailable(
                "this replica is not ready: it has not read its log",
            ));
        }
        Ok(())
    }

    fn query(&self) -> Query<'_> {
        match self.sequences.bytes() {
            [] => Query::ChunkHashesLe(self.chunks.bytes()),
            bytes => Query::SequenceHashesLe(bytes),
        }
    }
}

/// The status of a request with more than [`HASHES_MAX`] hashes.
pub fn too_large() -> Status {
    Status::resource_exhausted(format!("a request has at most {HASHES_MAX} hashes"))
}

/// Encodes the three packed columns, behind the prefix of an uncompressed gRPC message.
fn encode(matches: &Matches) -> Bytes {
    let rows = matches.workers.len();
    // Enough for any rows; the lengths of the varint columns are known only when written.
    let mut out = Vec::with_capacity(PREFIX_LEN + 3 * 6 + rows * (8 + 5 + 5));
    out.extend_from_slice(&[0; PREFIX_LEN]);
    if rows > 0 {
        out.push(1 << 3 | 2);
        put_varint(&mut out, 8 * rows as u64);
        for worker in &matches.workers {
            out.extend_from_slice(&worker.worker_id.to_le_bytes());
        }
        let ranks = matches.workers.iter().map(|worker| worker.dp_rank);
        put_column(&mut out, 2, ranks);
        put_column(&mut out, 3, matches.depths.iter().copied());
    }
    // A response of 2^32 bytes would be one of 238 million workers.
    let len = (out.len() - PREFIX_LEN) as u32;
    out[1..PREFIX_LEN].copy_from_slice(&len.to_be_bytes());
    Bytes::from(out)
}

fn put_column(out: &mut Vec<u8>, field: u8, values: impl Iterator<Item = u32> + Clone) {
    let len: usize = values.clone().map(|value| varint_len(value.into())).sum();
    out.push(field << 3 | 2);
    put_varint(out, len as u64);
    for value in values {
        put_varint(out, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CellConfig;
    use kvatlas_events::sequencer::Limits;
    use kvatlas_wire::{frame, v1};
    use prost::Message as _;

    fn cell(workers: u64) -> Cell {
        let config = CellConfig {
            cell: "blue".into(),
            model: "m".into(),
            block_size: 16,
            hash_contract: "c".into(),
            replica_id: "r".into(),
            version: "v".into(),
            lease_ms: 1_000,
            limits: Limits {
                hold_back_batches: 1,
                hold_back_ms: 1,
                recover_ms: 1,
                snapshot_parts: 1,
                snapshot_hashes: 1,
            },
            memory_bytes_max: 1 << 30,
        };
        let cell = Cell::new(config);
        cell.set_ready(true);
        for worker_id in 0..workers {
            let depth = 1 + worker_id % 300;
            let header = v1::Header {
                worker: Some(v1::Worker {
                    worker_id,
                    dp_rank: (worker_id * 100) as u32,
                }),
                epoch: 1,
                cell: "blue".into(),
                model: "m".into(),
                block_size: 16,
                hash_contract: "c".into(),
                ..Default::default()
            };
            let store = v1::Store {
                sequence_hashes: (1..=depth).collect(),
                tier: 1,
                ..Default::default()
            };
            let kind = Some(v1::event::Kind::Store(store));
            let batch = v1::Batch {
                header: Some(header),
                first_event_id: 1,
                events: vec![v1::Event { kind }],
                ..Default::default()
            };
            let record = frame::seal(&batch.encode_to_vec());
            assert_eq!(cell.apply([(record.as_slice(), 1)], "grpc", 1).accepted, 1);
        }
        cell
    }

    fn ask(cell: &Cell, message: &[u8]) -> v1::FindMatchesResponse {
        let framed = answer(cell, message).unwrap();
        let len = u32::from_be_bytes(framed[1..5].try_into().unwrap()) as usize;
        assert_eq!((framed[0], len), (0, framed.len() - 5));
        v1::FindMatchesResponse::decode(&framed[5..]).unwrap()
    }

    fn request(hashes: std::ops::RangeInclusive<u64>) -> v1::FindMatchesRequest {
        v1::FindMatchesRequest {
            sequence_hashes: hashes.collect(),
            ..Default::default()
        }
    }

    #[test]
    fn the_response_is_one_that_the_generated_code_reads() {
        let cell = cell(400);
        let response = ask(&cell, &request(1..=300).encode_to_vec());
        let mut expected: Vec<(u32, u64)> =
            (0..400).map(|id| (1 + (id % 300) as u32, id)).collect();
        expected.sort_unstable_by_key(|&(depth, id)| (std::cmp::Reverse(depth), id));
        assert_eq!(
            response.worker_ids,
            expected.iter().map(|row| row.1).collect::<Vec<_>>()
        );
        assert_eq!(
            response.depths,
            expected.iter().map(|row| row.0).collect::<Vec<_>>()
        );
        let ranks = response.worker_ids.iter().map(|id| (id * 100) as u32);
        assert_eq!(response.dp_ranks, ranks.collect::<Vec<_>>());
        assert_eq!(ask(&cell, &[]), v1::FindMatchesResponse::default());
    }

    #[test]
    fn hashes_in_several_pieces_or_unpacked_are_one_list() {
        let cell = cell(1);
        let mut pieces = request(1..=1).encode_to_vec();
        let whole = ask(&cell, &pieces);
        assert_eq!(whole.depths, [1]);
        // Encoded messages that follow one another merge: lists are joined.
        let cell = self::cell(300);
        pieces.extend(request(2..=2).encode_to_vec());
        for hash in 3..=4u64 {
            pieces.push(5 << 3 | 1);
            pieces.extend(hash.to_le_bytes());
        }
        assert_eq!(
            ask(&cell, &pieces),
            ask(&cell, &request(1..=4).encode_to_vec())
        );
    }

    #[test]
    fn garbage_is_an_invalid_argument() {
        let cell = cell(1);
        for message in [
            &[0xff][..],
            &[0x2a, 0x09, 1],
            &[0x2a, 0x03, 1, 2, 3],
            &[0x20, 0x01],
        ] {
            assert_eq!(
                answer(&cell, message).unwrap_err().code(),
                Code::InvalidArgument
            );
        }
        assert_eq!(cell.counters.get(Count::FindInvalid), 4);
    }
}
