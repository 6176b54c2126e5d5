//! Encodes records as `IngestRequest`s, each with gRPC's prefix.

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{encode_varint, encoded_len_varint};
use tonic::Status;

use crate::grpc::PREFIX_BYTES;

/// Key of `IngestRequest.records`: field 1, length-delimited.
const RECORDS_TAG: u8 = 0x0a;
/// Bytes of records in one request, unless a single record is larger.
///
/// It is below the size from which an allocator maps memory for each buffer: the page faults of a
/// request of half a megabyte cost twenty times its copying. And the receiver applies the first
/// requests of an append while later ones are on their way.
const REQUEST_BYTES_MAX: usize = 120 << 10;

/// Cuts `records` into requests; without records there is one empty request, which is answered, too.
///
/// # Errors
/// INVALID_ARGUMENT: a record of 4 GiB or more.
pub fn encode<'a>(records: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Bytes>, Status> {
    let mut requests = Vec::new();
    let mut part = Vec::new();
    let mut part_len = 0;
    for record in records {
        if !part.is_empty() && part_len + record.len() > REQUEST_BYTES_MAX {
            requests.push(request(&part)?);
            part.clear();
            part_len = 0;
        }
        part_len += record.len();
        part.push(record);
    }
    requests.push(request(&part)?);
    Ok(requests)
}

fn request(records: &[&[u8]]) -> Result<Bytes, Status> {
    let lens = records.iter().map(|record| record.len());
    let len: usize = lens
        .map(|len| 1 + encoded_len_varint(len as u64) + len)
        .sum();
    let Ok(prefixed) = u32::try_from(len) else {
        return Err(Status::invalid_argument(format!("a record of {len} bytes")));
    };
    let mut message = BytesMut::with_capacity(PREFIX_BYTES + len);
    message.put_u8(0);
    message.put_u32(prefixed);
    for record in records {
        message.put_u8(RECORDS_TAG);
        encode_varint(record.len() as u64, &mut message);
        message.put_slice(record);
    }
    Ok(message.freeze())
}

#[cfg(test)]
mod tests {
    use kvatlas_wire::v1::IngestRequest;
    use prost::Message;

    use super::*;

    fn decoded(request: &Bytes) -> Vec<Vec<u8>> {
        let (prefix, message) = request.split_first_chunk::<PREFIX_BYTES>().unwrap();
        assert_eq!(prefix[0], 0);
        let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        assert_eq!(len as usize, message.len());
        IngestRequest::decode(message).unwrap().records
    }

    #[test]
    fn records_of_every_length_come_back_in_order_and_requests_are_bounded() {
        let lens = [0, 1, 127, 128, 16_383, 16_384, 99_000, 60_000, 300_000, 5];
        let records: Vec<Vec<u8>> = (0u8..).zip(lens).map(|(n, len)| vec![n; len]).collect();
        let requests = encode(records.iter().map(Vec::as_slice)).unwrap();
        let parts: Vec<_> = requests.iter().map(decoded).collect();
        assert_eq!(parts.concat(), records);
        for part in &parts {
            let bytes: usize = part.iter().map(Vec::len).sum();
            assert!(bytes <= REQUEST_BYTES_MAX || part.len() == 1);
        }
    }

    #[test]
    fn no_records_are_one_empty_request() {
        let requests = encode([]).unwrap();
        assert_eq!(requests.len(), 1);
        assert!(decoded(&requests[0]).is_empty());
    }
}
