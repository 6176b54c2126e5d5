//! The frontend's data plane: a thin HTTP/1.1 layer that moves bytes. It reads requests whole, within limits; asks a router
//! what to do with each; sends them to engines over pooled connections; and streams the answers back.
//!
//! It knows nothing about prompts, caches or policies. [`exchange`] is the contract with the router, which may live in
//! another thread and another language: events go out, steps come in, and neither side waits for the other.
//!
//! ```text
//! server ─▶ connection ─▶ head, body ─▶ Event::Arrived ─▶ router ─▶ Step::Forward ─▶ upstream ─▶ engine
//!               ▲                                                                        │
//!               └── downstream ◀── relay (whole events, whole answers) ◀─────────────────┘
//! ```
//!
//! Bounds: [`Limits`] for what a client can make it hold and wait for; one read of an engine's answer per request, because
//! nothing is read from an engine while its client does not take what came before.

mod accept;
mod body;
mod connection;
mod downstream;
mod engine_stream;
mod error;
pub mod exchange;
mod head;
mod headers;
mod limits;
mod relay;
mod server;
mod socket;
mod sse;
mod tls;
mod upstream;

pub use accept::{ConnectionLines, LINE_WORDS, SharedListener};
pub use limits::Limits;
pub use server::Server;
pub use tls::{EngineTls, Identity, TlsError};
