//! A lean gRPC client of `kvatlas.v1.Indexer.FindMatches`.
//!
//! A frontend makes this call for every request, within a deadline of milliseconds, on a core that it
//! shares with its other work; a general-purpose client spends most of that core on layers that one
//! unary method does not need. This one is HTTP/2 (`h2`) with gRPC's framing of one message each way:
//!
//! 1. `message` encodes the query, its hashes by one copy, and decodes the answer;
//! 2. `link` keeps one connection to the server and makes it again in the background;
//! 3. `call` sends a message over it and waits for the answer, no longer than the deadline;
//! 4. `channel` joins them, behind blocking and spawned calls on the one I/O thread of `runtime`.
//!
//! Errors are gRPC statuses. A call on a connection that is known to be down fails at once, so that
//! the caller can ask another server within its deadline.

mod backoff;
mod call;
mod channel;
mod link;
mod message;
mod runtime;

pub use channel::Channel;
pub use message::{Matches, Query};
pub use tonic::{Code, Status};
