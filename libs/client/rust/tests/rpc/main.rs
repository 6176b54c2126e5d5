//! The client against real servers, and against peers that are none.

mod finder;
mod ingest;
mod server;
