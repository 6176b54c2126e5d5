//! Operation streams: queries, stores and removals of a whole fleet on one timeline.
//!
//! 1. `format` – the file, byte by byte, and the records
//! 2. `writer` and `reader` – to a file and back
//! 3. [`synthetic`] – makes a stream

mod format;
mod reader;
pub mod synthetic;
mod writer;

pub use format::{FLAG_BY_REQUEST, FLAG_NO_HUB, Op, OpStream, Record, Shape, StreamError, Totals};
pub use writer::{Recorder, StreamSink};
