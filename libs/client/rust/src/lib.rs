//! A lean gRPC client of `kvatlas.v1.Indexer`: of `FindMatches`, and of `Ingest`.
//!
//! A frontend asks for every request, within a deadline of milliseconds, and a publisher tells of every
//! step of its engine, on cores that they share with other work; a general-purpose client spends most
//! of such a core on layers that one method does not need. This one is HTTP/2 (`h2`) with gRPC's
//! framing. `FindMatches` is one message each way:
//!
//! 1. `message` encodes the query, its hashes by one copy, and decodes the answer;
//! 2. `link` keeps one connection to the server and makes it again in the background;
//! 3. `call` sends a message over it and waits for the answer, no longer than the deadline;
//! 4. `channel` joins them, behind blocking and spawned calls on the one I/O thread of `runtime`.
//!
//! `ingest` is one long call over a connection of its own, which ends with it; `ingest_requests` encodes
//! what it sends.
//!
//! Errors are gRPC statuses. A call on a connection that is known to be down fails at once, so that
//! the caller can ask another server within its deadline.

mod address;
mod backoff;
mod call;
mod channel;
mod ingest;
mod ingest_requests;
mod link;
mod message;
mod runtime;

pub use channel::Channel;
pub use ingest::IngestStream;
pub use kvatlas_wire::v1::IngestResponse;
pub use message::{Matches, Query};
pub use tonic::{Code, Status};
