//! The bounds of what a client or an engine can make the proxy hold or wait for.

use std::time::Duration;

/// Bounds of one listening address. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Size of a request's head: request line, headers, and the trailers of a chunked body.
    pub head_bytes_max: usize,
    /// Number of headers of a request.
    pub headers_max: usize,
    /// Size of a request's body, as sent and after decompression.
    pub body_bytes_max: usize,
    /// An unstreamed answer up to this size is sent once it is complete; a larger one as it arrives.
    pub answer_buffer_bytes_max: usize,
    /// Time from the first byte of a request to the end of its head.
    pub head_timeout: Duration,
    /// Time for a body, beyond a second for every [`BODY_BYTES_A_SECOND`].
    pub body_timeout: Duration,
    /// Time that a connection stays open between two requests.
    pub idle_timeout: Duration,
    /// Time in which a client reads nothing of an answer that waits for it.
    pub write_timeout: Duration,
    /// Time to connect to an engine.
    pub connect_timeout: Duration,
    /// Time from the request to the first byte of an engine's answer; none: unlimited.
    pub first_byte_timeout: Option<Duration>,
    /// Time between two reads of an engine's answer; none: unlimited.
    pub between_bytes_timeout: Option<Duration>,
}

/// The slowest upload that is accepted, on average after the first `body_timeout`.
pub const BODY_BYTES_A_SECOND: usize = 16 * 1024;

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes_max: 32 << 10,
            headers_max: 128,
            body_bytes_max: 32 << 20,
            answer_buffer_bytes_max: 4 << 20,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(2),
            first_byte_timeout: Some(Duration::from_secs(600)),
            between_bytes_timeout: Some(Duration::from_secs(120)),
        }
    }
}
