//! A lean gRPC client of two methods of `kvatlas.v1.Indexer`: `FindMatches` and `Ingest`.
//!
//! A frontend asks for every request, within a deadline of milliseconds. A publisher sends every step
//! of its engine. Both share their cores with other work, and a general-purpose client would spend
//! most of such a core on layers that one method does not need. This client is HTTP/2 (`h2`) with
//! gRPC's framing, on one I/O thread per process.
//!
//! | module | what |
//! |---|---|
//! | `channel` | one server's `FindMatches`: blocking calls and spawned calls |
//! | `find_matches` | encodes the query, its hashes by one copy, and decodes the answer |
//! | `connection` | keeps one connection to a server and replaces it in the background |
//! | `grpc` | one call over a connection: headers, deadline, status |
//! | `ingest` | one long `Ingest` call over a connection of its own |
//! | `io_thread`, `backoff`, `address` | the I/O thread, the pauses between attempts, `host:port` |
//!
//! Errors are gRPC statuses. A call on a connection that is known to be down fails at once, so the
//! caller can ask another server within its deadline.

mod address;
mod backoff;
mod channel;
mod connection;
mod find_matches;
mod grpc;
mod ingest;
mod io_thread;

pub use channel::Channel;
pub use find_matches::Query;
pub use ingest::IngestStream;
pub use kvatlas_wire::v1::{FindMatchesResponse, IngestResponse};
pub use tonic::{Code, Status};
