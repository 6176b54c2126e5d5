//! Writing an operation stream: in memory, or straight to a file.

use std::io::{Seek, SeekFrom, Write};

use crate::stream::format::{
    HEADER_BYTES, MAGIC, Op, OpStream, RECORD_WORDS, Record, Shape, StreamError, Totals, VERSION,
};

/// Collects records in order of time, and makes the header from them.
pub struct Recorder {
    stream: OpStream,
}

impl Recorder {
    /// A stream without records.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            stream: OpStream {
                shape,
                totals: Totals::default(),
                span_ns: 0,
                words: Vec::new(),
            },
        }
    }

    /// Appends a record.
    ///
    /// # Errors
    /// If it is earlier than the one before it, names a worker that the shape does not have, has more
    /// than 2³² - 1 blocks, or has a parent whose sequence hash is 0, which the format uses for "none".
    pub fn record(&mut self, record: Record<'_>) -> Result<(), StreamError> {
        let Self { stream } = self;
        let head = count_record(
            &record,
            &stream.shape,
            &mut stream.totals,
            &mut stream.span_ns,
        )?;
        stream.words.extend(head);
        stream.words.extend(record.op.hashes());
        Ok(())
    }

    /// The stream recorded so far.
    #[must_use]
    pub fn finish(self) -> OpStream {
        self.stream
    }
}

/// Checks a record against those before it, counts it, and returns the words with which it begins.
fn count_record(
    record: &Record<'_>,
    shape: &Shape,
    totals: &mut Totals,
    last_ns: &mut u64,
) -> Result<[u64; RECORD_WORDS], StreamError> {
    let hashes = record.op.hashes();
    let parent = match record.op {
        Op::Store { parent, .. } => parent,
        Op::Query(_) | Op::Remove(_) => None,
    };
    let fault = if record.time_ns < *last_ns {
        Some("its time is before that of the record before it")
    } else if record.worker >= shape.workers {
        Some("it names a worker that the stream does not have")
    } else if u32::try_from(hashes.len()).is_err() {
        Some("it has more blocks than 32 bits count")
    } else if parent == Some(0) {
        Some("its parent's hash is 0, which stands for no parent")
    } else {
        None
    };
    if let Some(reason) = fault {
        let number = totals.records.iter().sum();
        return Err(StreamError::Unrecordable { number, reason });
    }
    let kind = record.op.kind();
    totals.records[kind] += 1;
    totals.blocks[kind] += hashes.len() as u64;
    *last_ns = record.time_ns;
    Ok([
        record.time_ns,
        u64::from(record.worker) << 32 | kind as u64,
        hashes.len() as u64,
        parent.unwrap_or(0),
    ])
}

/// Writes records to a file one by one, for streams that do not fit into memory. [`StreamSink::finish`] writes the header; until
/// then no reader accepts the file.
pub struct StreamSink<W> {
    sink: W,
    shape: Shape,
    totals: Totals,
    span_ns: u64,
    written: u64,
}

impl<W: Write + Seek> StreamSink<W> {
    /// Begins a stream at the start of `sink`. Buffer it: it gets eight bytes at a time.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn new(mut sink: W, shape: Shape) -> Result<Self, StreamError> {
        sink.write_all(&[0; HEADER_BYTES]).map_err(failed(0))?;
        Ok(Self {
            sink,
            shape,
            totals: Totals::default(),
            span_ns: 0,
            written: HEADER_BYTES as u64,
        })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// As [`Recorder::record`], and those of the sink.
    pub fn record(&mut self, record: Record<'_>) -> Result<(), StreamError> {
        let head = count_record(&record, &self.shape, &mut self.totals, &mut self.span_ns)?;
        for word in head.iter().chain(record.op.hashes()) {
            self.sink
                .write_all(&word.to_le_bytes())
                .map_err(failed(self.written))?;
            self.written += 8;
        }
        Ok(())
    }

    /// Writes the header; returns the totals, and the time of the last record in ns.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(mut self) -> Result<(Totals, u64), StreamError> {
        let header = header(&self.shape, &self.totals, self.span_ns);
        self.sink.seek(SeekFrom::Start(0)).map_err(failed(0))?;
        self.sink.write_all(&header).map_err(failed(0))?;
        self.sink.flush().map_err(failed(self.written))?;
        Ok((self.totals, self.span_ns))
    }
}

fn failed(offset: u64) -> impl Fn(std::io::Error) -> StreamError {
    move |source| StreamError::Io { offset, source }
}

impl OpStream {
    /// Writes the whole stream. Buffer the sink: it gets eight bytes at a time.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn write(&self, mut sink: impl Write) -> Result<(), StreamError> {
        let header = header(&self.shape, &self.totals, self.span_ns);
        sink.write_all(&header).map_err(failed(0))?;
        for (at, word) in self.words.iter().enumerate() {
            let written = HEADER_BYTES as u64 + 8 * at as u64;
            sink.write_all(&word.to_le_bytes())
                .map_err(failed(written))?;
        }
        let end = HEADER_BYTES as u64 + 8 * self.words.len() as u64;
        sink.flush().map_err(failed(end))
    }
}

fn header(shape: &Shape, totals: &Totals, span_ns: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend(MAGIC);
    for short in [
        VERSION,
        HEADER_BYTES as u32,
        shape.workers,
        shape.block_tokens,
        shape.id_tokens,
        shape.replicas,
    ] {
        bytes.extend(short.to_le_bytes());
    }
    let records = totals.records.iter().sum();
    let longs = [shape.capacity, shape.seed, records, span_ns];
    let counts = totals.records.into_iter().chain(totals.blocks);
    for long in longs.into_iter().chain(counts).chain([shape.flags, 0]) {
        bytes.extend(long.to_le_bytes());
    }
    bytes
}
