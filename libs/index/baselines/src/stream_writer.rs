//! Recording an operation stream and writing it out.

use std::io::Write;

use crate::opstream::{
    HEADER_BYTES, MAGIC, Op, OpStream, Record, Shape, StreamError, Totals, VERSION,
};

/// Collects records in order of time; the header follows from them.
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
        let hashes = record.op.hashes();
        let parent = match record.op {
            Op::Store { parent, .. } => parent,
            Op::Query(_) | Op::Remove(_) => None,
        };
        let fault = if record.time_ns < stream.span_ns {
            Some("its time is before that of the record before it")
        } else if record.worker >= stream.shape.workers {
            Some("it names a worker that the stream does not have")
        } else if u32::try_from(hashes.len()).is_err() {
            Some("it has more blocks than 32 bits count")
        } else if parent == Some(0) {
            Some("its parent's hash is 0, which stands for no parent")
        } else {
            None
        };
        if let Some(reason) = fault {
            let number = stream.totals.records.iter().sum();
            return Err(StreamError::Unrecordable { number, reason });
        }
        let kind = record.op.kind();
        stream.words.extend([
            record.time_ns,
            u64::from(record.worker) << 32 | kind as u64,
            hashes.len() as u64,
            parent.unwrap_or(0),
        ]);
        stream.words.extend(hashes);
        stream.totals.records[kind] += 1;
        stream.totals.blocks[kind] += hashes.len() as u64;
        stream.span_ns = record.time_ns;
        Ok(())
    }

    /// The stream recorded so far.
    #[must_use]
    pub fn finish(self) -> OpStream {
        self.stream
    }
}

impl OpStream {
    /// Writes the whole stream. Buffer the sink: it gets eight bytes at a time.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn write(&self, mut sink: impl Write) -> Result<(), StreamError> {
        let header = self.header();
        let failed = |at: usize| {
            move |source| StreamError::Io {
                offset: at as u64,
                source,
            }
        };
        sink.write_all(&header).map_err(failed(0))?;
        for (at, word) in self.words.iter().enumerate() {
            let written = HEADER_BYTES + 8 * at;
            sink.write_all(&word.to_le_bytes())
                .map_err(failed(written))?;
        }
        let end = HEADER_BYTES + 8 * self.words.len();
        sink.flush().map_err(failed(end))
    }

    fn header(&self) -> Vec<u8> {
        let shape = &self.shape;
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
        let records = self.totals.records.iter().sum();
        let longs = [shape.capacity, shape.seed, records, self.span_ns];
        let counts = self.totals.records.into_iter().chain(self.totals.blocks);
        for long in longs.into_iter().chain(counts).chain([shape.flags, 0]) {
            bytes.extend(long.to_le_bytes());
        }
        bytes
    }
}
