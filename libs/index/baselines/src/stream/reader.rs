//! Reading an operation stream, with strict checks.

use std::io::{ErrorKind, Read};

use crate::stream::format::{
    FLAG_BY_REQUEST, FLAG_NO_HUB, HEADER_BYTES, MAGIC, OpStream, RECORD_WORDS, Shape, StreamError,
    Totals, VERSION,
};

/// Words read at a time, which bounds the allocation that a false count can cause.
const SLICE_WORDS: usize = 1 << 16;

impl OpStream {
    /// Reads a whole stream, to the end of `source`.
    ///
    /// # Errors
    /// Names the first place at which the bytes are not a stream of version 1.
    pub fn read(source: impl Read) -> Result<Self, StreamError> {
        let mut reader = Reader {
            source,
            offset: 0,
            words: Vec::new(),
        };
        let header = reader.header()?;
        let mut counted = Totals::default();
        let mut last_ns = 0;
        for _ in 0..header.records {
            last_ns = reader.record(&header, last_ns, &mut counted)?;
        }
        expect_field(56, "the span", header.span_ns, last_ns)?;
        for kind in 0..3 {
            let at = 64 + 8 * kind as u64;
            let (records, blocks) = (header.totals.records[kind], header.totals.blocks[kind]);
            expect_field(
                at,
                "the number of records of a kind",
                records,
                counted.records[kind],
            )?;
            expect_field(
                at + 24,
                "the number of blocks of a kind",
                blocks,
                counted.blocks[kind],
            )?;
        }
        reader.end()?;
        Ok(Self {
            shape: header.shape,
            totals: counted,
            span_ns: last_ns,
            words: reader.words,
        })
    }
}

struct Header {
    shape: Shape,
    totals: Totals,
    records: u64,
    span_ns: u64,
}

struct Reader<R> {
    source: R,
    offset: u64,
    words: Vec<u64>,
}

impl<R: Read> Reader<R> {
    /// Fills `buffer` with as many bytes as there are.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, StreamError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.source.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    let offset = self.offset + filled as u64;
                    return Err(StreamError::Io { offset, source });
                }
            }
        }
        self.offset += filled as u64;
        Ok(filled)
    }

    fn exactly(&mut self, buffer: &mut [u8], what: &'static str) -> Result<(), StreamError> {
        if self.fill(buffer)? < buffer.len() {
            let offset = self.offset;
            return Err(StreamError::Truncated { offset, what });
        }
        Ok(())
    }

    fn header(&mut self) -> Result<Header, StreamError> {
        let mut bytes = [0; HEADER_BYTES];
        self.exactly(&mut bytes, "the header")?;
        let long = |at: usize| -> u64 { word(&bytes[at..]) };
        let short = |at: usize| -> u32 { (long(at & !7) >> (8 * (at & 4))) as u32 };
        expect_field(0, "the magic", long(0), word(&MAGIC))?;
        expect_field(8, "the version", short(8).into(), VERSION.into())?;
        expect_field(12, "the header size", short(12).into(), HEADER_BYTES as u64)?;
        let flags = long(112);
        if flags & !(FLAG_BY_REQUEST | FLAG_NO_HUB) != 0 {
            return Err(field(112, "the flags", flags, "1 and 2 at most".into()));
        }
        expect_field(120, "the word that ends the header", long(120), 0)?;
        Ok(Header {
            shape: Shape {
                workers: short(16),
                block_tokens: short(20),
                id_tokens: short(24),
                replicas: short(28),
                capacity: long(32),
                seed: long(40),
                flags,
            },
            totals: Totals {
                records: [long(64), long(72), long(80)],
                blocks: [long(88), long(96), long(104)],
            },
            records: long(48),
            span_ns: long(56),
        })
    }

    /// Reads one record, appends it to `words`, and returns its time.
    fn record(
        &mut self,
        header: &Header,
        last_ns: u64,
        counted: &mut Totals,
    ) -> Result<u64, StreamError> {
        let start = self.offset;
        let mut bytes = [0; RECORD_WORDS * 8];
        self.exactly(&mut bytes, "the head of a record")?;
        let head: [u64; RECORD_WORDS] = std::array::from_fn(|at| word(&bytes[8 * at..]));
        let [time_ns, kind_and_worker, count, parent] = head;
        if time_ns < last_ns {
            return Err(field(
                start,
                "a record's time",
                time_ns,
                format!("{last_ns} or later"),
            ));
        }
        let kind = u64::from(kind_and_worker as u32);
        if kind > 2 {
            return Err(field(
                start + 8,
                "a record's kind",
                kind,
                "0, 1 or 2".into(),
            ));
        }
        let worker = kind_and_worker >> 32;
        if worker >= header.shape.workers.into() {
            let expected = format!("below {}", header.shape.workers);
            return Err(field(start + 12, "a record's worker", worker, expected));
        }
        expect_field(start + 20, "the padding of a record", count >> 32, 0)?;
        if kind != 1 {
            expect_field(start + 24, "the parent of what is no store", parent, 0)?;
        }
        self.words.extend(head);
        self.hashes(count as usize)?;
        counted.records[kind as usize] += 1;
        counted.blocks[kind as usize] += count;
        Ok(time_ns)
    }

    fn hashes(&mut self, count: usize) -> Result<(), StreamError> {
        let mut bytes = vec![0; 8 * count.min(SLICE_WORDS)];
        let mut left = count;
        while left > 0 {
            let now = left.min(SLICE_WORDS);
            self.exactly(&mut bytes[..8 * now], "the hashes of a record")?;
            self.words
                .extend(bytes[..8 * now].chunks_exact(8).map(word));
            left -= now;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), StreamError> {
        let offset = self.offset;
        match self.fill(&mut [0])? {
            0 => Ok(()),
            _ => Err(StreamError::Trailing { offset }),
        }
    }
}

/// The little-endian word with which `bytes` begin.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

fn field(offset: u64, field: &'static str, found: u64, expected: String) -> StreamError {
    StreamError::Field {
        offset,
        field,
        found,
        expected,
    }
}

fn expect_field(
    offset: u64,
    name: &'static str,
    found: u64,
    expected: u64,
) -> Result<(), StreamError> {
    if found == expected {
        return Ok(());
    }
    Err(field(offset, name, found, expected.to_string()))
}
