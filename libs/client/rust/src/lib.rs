//! A lean gRPC client of two methods of `kvatlas.v1.Indexer`: `FindMatches` and `Ingest`.
//!
//! A frontend asks for every request, within a deadline of milliseconds. A publisher sends every step
//! of its engine. Both share their cores with other work, and a general-purpose client would spend
//! most of such a core on layers that one method does not need. This client is HTTP/2 (`h2`) with
//! gRPC's framing, on one I/O thread per process or on a runtime of the caller's.
//!
//! | module | what |
//! |---|---|
//! | `finder` | `FindMatches` of a cell: replica after replica, within one deadline |
//! | `health` | which replica to ask next; pure |
//! | `find_error` | why a query has no answer |
//! | `find_matches` | encodes the query, its hashes by one copy, and decodes the answer |
//! | `channel` | one attempt: the connection of a replica, opened when first used |
//! | `connection` | keeps one connection to a server and replaces it in the background |
//! | `grpc` | one call over a connection: headers, deadline, status |
//! | `ingest` | one long `Ingest` call over a connection of its own |
//! | `io_thread`, `backoff`, `random`, `address` | the I/O thread, pauses and their jitter, `host:port` |
//!
//! A call on a connection that is known to be down fails at once, so that another server is asked
//! within the deadline.

mod address;
mod backoff;
mod channel;
mod connection;
mod find_error;
mod find_matches;
mod finder;
mod grpc;
mod health;
mod ingest;
mod io_thread;
mod random;

pub use address::check_address;
pub use find_error::{Failure, FindError};
pub use find_matches::{CellTerms, Query};
pub use finder::{Finder, Found};
pub use health::{Order, ReplicaHealth, Replicas};
pub use ingest::IngestStream;
pub use kvatlas_wire::v1::{FindMatchesResponse, IngestResponse};
pub use tonic::{Code, Status};
