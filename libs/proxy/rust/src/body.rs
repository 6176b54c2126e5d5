//! Decodes the body of a request: its length or its chunks, then its compression. Nothing here waits.

use std::io::Read;

use bytes::{Buf, Bytes, BytesMut};
use flate2::read::{DeflateDecoder, GzDecoder, ZlibDecoder};
use http::{HeaderMap, StatusCode, header};
use memchr::memchr;

use crate::error::Refused;
use crate::head::Framing;
use crate::limits::Limits;

/// A chunk's line is as long without an extension or idle zeros; a body of small chunks has many.
const CHUNK_LINE_BYTES: usize = 8;

/// A body that arrives. Feed it with [`BodyDecoder::advance`].
pub struct BodyDecoder {
    state: State,
    body: BytesMut,
    bytes_max: usize,
    /// Bytes of chunk lines and trailers that may still come; a client could send them without end.
    overhead_left: usize,
}

enum State {
    /// So many bytes are missing.
    Length(usize),
    ChunkLine,
    ChunkData(usize),
    ChunkEnd,
    Trailers,
    Done,
}

impl BodyDecoder {
    /// # Errors
    /// 413: the announced length is above the limit.
    pub fn new(framing: Framing, limits: &Limits) -> Result<Self, Refused> {
        let bytes_max = limits.body_bytes_max;
        if matches!(framing, Framing::Length(length) if length > bytes_max) {
            return Err(Refused::too_large(bytes_max));
        }
        Ok(Self {
            bytes_max,
            overhead_left: limits.head_bytes_max,
            ..Self::unlimited(framing)
        })
    }

    /// A decoder of a body that is forwarded as it arrives, see [`Self::take_received`]: of any length.
    pub fn unlimited(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::ChunkLine,
        };
        Self {
            state,
            body: BytesMut::new(),
            bytes_max: usize::MAX,
            overhead_left: usize::MAX,
        }
    }

    /// Takes the bytes of the body that have arrived since the last call.
    pub fn take_received(&mut self) -> Bytes {
        self.body.split().freeze()
    }

    /// Number of bytes that should be read before the next call: all of them where they are known.
    pub fn missing(&self) -> usize {
        match self.state {
            State::Length(missing) | State::ChunkData(missing) => missing,
            _ => 0,
        }
    }

    /// Number of bytes so far.
    pub fn received(&self) -> usize {
        self.body.len()
    }

    /// Takes what belongs to the body off the front of `buffer`; true once the body is complete.
    ///
    /// # Errors
    /// 413: it is above the limit; 400: its chunks are malformed. The connection must end.
    pub fn advance(&mut self, buffer: &mut BytesMut) -> Result<bool, Refused> {
        loop {
            match self.state {
                State::Done => return Ok(true),
                State::Length(missing) => {
                    let missing = self.take(missing, buffer);
                    self.state = State::Length(missing);
                    if missing > 0 {
                        return Ok(false);
                    }
                    self.state = State::Done;
                }
                State::ChunkLine => {
                    let Some(line) = self.take_line(buffer, CHUNK_LINE_BYTES)? else {
                        return Ok(false);
                    };
                    let size = chunk_size(&line)?;
                    self.state = match size {
                        0 => State::Trailers,
                        _ if size > self.bytes_max - self.body.len() => {
                            return Err(Refused::too_large(self.bytes_max));
                        }
                        _ => State::ChunkData(size),
                    };
                }
                State::ChunkData(missing) => {
                    let missing = self.take(missing, buffer);
                    self.state = State::ChunkData(missing);
                    if missing > 0 {
                        return Ok(false);
                    }
                    self.state = State::ChunkEnd;
                }
                State::ChunkEnd => {
                    if buffer.len() < 2 {
                        return Ok(false);
                    }
                    if !buffer.starts_with(b"\r\n") {
                        return Err(malformed());
                    }
                    buffer.advance(2);
                    self.state = State::ChunkLine;
                }
                State::Trailers => {
                    // They are dropped: no route knows any.
                    let Some(line) = self.take_line(buffer, 0)? else {
                        return Ok(false);
                    };
                    if line.is_empty() {
                        self.state = State::Done;
                    }
                }
            }
        }
    }

    /// The bytes of a complete body.
    pub fn finish(self) -> Bytes {
        self.body.freeze()
    }

    fn take(&mut self, missing: usize, buffer: &mut BytesMut) -> usize {
        let taken = missing.min(buffer.len());
        if self.body.is_empty() {
            self.body = buffer.split_to(taken); // without a copy
        } else {
            self.body.extend_from_slice(&buffer[..taken]);
            buffer.advance(taken);
        }
        missing - taken
    }

    /// A line without its end. Its bytes use up the allowance, beyond the first `free_bytes`.
    fn take_line(
        &mut self,
        buffer: &mut BytesMut,
        free_bytes: usize,
    ) -> Result<Option<BytesMut>, Refused> {
        let Some(at) = memchr(b'\n', buffer) else {
            if buffer.len() > self.overhead_left {
                return Err(malformed());
            }
            return Ok(None);
        };
        let charged = (at + 1).saturating_sub(free_bytes);
        if at == 0 || buffer[at - 1] != b'\r' || charged > self.overhead_left {
            return Err(malformed());
        }
        let mut line = buffer.split_to(at + 1);
        line.truncate(at - 1);
        self.overhead_left -= charged;
        Ok(Some(line))
    }
}

fn malformed() -> Refused {
    Refused::malformed("The chunks of the request's body are malformed")
}

/// The size in a chunk's line: hexadecimal digits, then perhaps an extension, which is ignored.
fn chunk_size(line: &[u8]) -> Result<usize, Refused> {
    let digits = line
        .iter()
        .position(|byte| !byte.is_ascii_hexdigit())
        .unwrap_or(line.len());
    let rest = &line[digits..];
    if digits == 0 || digits > 15 || !(rest.is_empty() || rest.trim_ascii_start().starts_with(b";"))
    {
        return Err(malformed());
    }
    let text = std::str::from_utf8(&line[..digits]).map_err(|_| malformed())?;
    usize::from_str_radix(text, 16).map_err(|_| malformed())
}

/// Undoes the body's compression; a body without any is returned as it is.
///
/// # Errors
/// 413: it is above the limit once decompressed; 400: it is not what its header says; 415: an unknown compression.
pub fn decompress(headers: &HeaderMap, body: Bytes, bytes_max: usize) -> Result<Bytes, Refused> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return Ok(body);
    };
    let coding = coding.as_bytes().to_ascii_lowercase();
    if codings.next().is_some() {
        return Err(unknown_compression());
    }
    match &coding[..] {
        b"" | b"identity" => Ok(body),
        b"gzip" | b"x-gzip" => read_all(GzDecoder::new(&body[..]), bytes_max),
        // Both forms are in use: with zlib's header, as the RFC says, and without.
        b"deflate" if body.first().is_some_and(|byte| byte & 0x0f == 8) => {
            read_all(ZlibDecoder::new(&body[..]), bytes_max)
        }
        b"deflate" => read_all(DeflateDecoder::new(&body[..]), bytes_max),
        _ => Err(unknown_compression()),
    }
}

fn read_all(decoder: impl Read, bytes_max: usize) -> Result<Bytes, Refused> {
    let mut whole = Vec::new();
    decoder
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut whole)
        .map_err(|_| Refused::malformed("The compressed body of the request is malformed"))?;
    if whole.len() > bytes_max {
        return Err(Refused::too_large(bytes_max));
    }
    Ok(whole.into())
}

fn unknown_compression() -> Refused {
    Refused::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "bad_encoding",
        "The request's Content-Encoding is neither gzip nor deflate",
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn limits() -> Limits {
        Limits {
            body_bytes_max: 1_000,
            head_bytes_max: 200,
            ..Limits::default()
        }
    }

    /// Feeds the pieces; returns the body and what is left of the buffer.
    fn decode(framing: Framing, pieces: &[&[u8]]) -> Result<Option<(Bytes, Vec<u8>)>, Refused> {
        let mut decoder = BodyDecoder::new(framing, &limits())?;
        let mut buffer = BytesMut::new();
        let mut done = decoder.advance(&mut buffer)?;
        for piece in pieces {
            buffer.extend_from_slice(piece);
            done = decoder.advance(&mut buffer)?;
        }
        Ok(done.then(|| (decoder.finish(), buffer.to_vec())))
    }

    fn refused(framing: Framing, text: &str) -> u16 {
        decode(framing, &[text.as_bytes()])
            .expect_err("refused")
            .status
            .as_u16()
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for text in [
            "g\r\n",
            "\r\n",
            "-1\r\n",
            "1\nx",
            "2\r\nxxx\r\n",
            "1 x\r\n",
            "0x1\r\n",
            "ffffffffffffffff\r\n",
            "1\r\nx\n\n",
        ] {
            assert_eq!(refused(Framing::Chunked, text), 400, "{text:?}");
        }
        let endless = format!("1;{}", "a".repeat(300));
        assert_eq!(refused(Framing::Chunked, &endless), 400);
        assert_eq!(
            refused(
                Framing::Chunked,
                &format!("0\r\n{}", "A: b\r\n".repeat(2_000))
            ),
            400
        );
    }

    #[test]
    fn bodies_above_the_limit_are_refused_before_they_are_read() {
        assert_eq!(refused(Framing::Length(1_001), ""), 413);
        assert_eq!(refused(Framing::Chunked, "3e9\r\n"), 413);
        assert_eq!(
            refused(
                Framing::Chunked,
                &format!("3e8\r\n{}\r\n1\r\n", "a".repeat(1_000))
            ),
            413
        );
    }

    #[test]
    fn compressed_bodies_are_decoded_within_the_limit() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("GZIP"));
        let gzip = |data: &[u8]| {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(data).expect("memory");
            Bytes::from(encoder.finish().expect("memory"))
        };
        assert_eq!(decompress(&headers, gzip(b"abc"), 3).expect("valid"), "abc");
        let bomb = gzip(&[0; 100_000]);
        assert_eq!(
            decompress(&headers, bomb, 1_000).expect_err("bomb").status,
            413
        );
        assert_eq!(
            decompress(&headers, Bytes::from_static(b"abc"), 9)
                .expect_err("no gzip")
                .status,
            400
        );
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("br"));
        assert_eq!(
            decompress(&headers, Bytes::new(), 9)
                .expect_err("unknown")
                .status,
            415
        );
    }

    proptest! {
        #[test]
        fn chunks_give_the_body_however_they_are_cut(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                wire.extend(format!("{:X};x=y\r\n", chunk.len()).bytes());
                wire.extend(chunk);
                wire.extend(b"\r\n");
            }
            wire.extend(b"0\r\nTrailer: x\r\n\r\nNEXT");
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len())).collect();
            places.extend([0, wire.len()]);
            places.sort_unstable();
            let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &wire[pair[0]..pair[1]]).collect();
            let (body, rest) = decode(Framing::Chunked, &pieces).expect("valid").expect("complete");
            prop_assert_eq!(body.to_vec(), chunks.concat());
            prop_assert_eq!(rest, b"NEXT".to_vec());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            drop(decode(Framing::Chunked, &[&bytes]));
        }
    }
}
