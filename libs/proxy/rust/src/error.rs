//! Errors as OpenAI's clients expect them: a status and a JSON object. No text of a client's request and no address of an
//! engine ever enters one.

use http::StatusCode;

/// A request that the proxy refuses by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: StatusCode,
    /// `code` of the error object, and a metric's label.
    pub code: &'static str,
    pub message: String,
}

impl Refused {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    /// 400: the request is not HTTP as RFC 9112 defines it.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed_request", message)
    }

    /// 413: the body is larger than the limit.
    pub fn too_large(bytes_max: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request_too_large",
            format!("The request body is larger than {bytes_max} bytes"),
        )
    }

    /// 408: the client was too slow.
    pub fn timed_out(part: &str) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "request_timeout",
            format!("The {part} of the request did not arrive in time"),
        )
    }

    /// The JSON object of the answer.
    pub fn body(&self) -> Vec<u8> {
        error_body(&self.message, "invalid_request_error", self.code)
    }
}

/// `{"error": {"message", "type", "param", "code"}}`
pub fn error_body(message: &str, kind: &str, code: &str) -> Vec<u8> {
    serde_json::json!({
        "error": {"message": message, "type": kind, "param": null, "code": code}
    })
    .to_string()
    .into_bytes()
}

/// The text for a client whose engine died after its first byte.
pub const ENGINE_DIED: &str = "The inference engine failed while it was answering";

/// The object for it.
pub fn engine_died() -> Vec<u8> {
    error_body(ENGINE_DIED, "server_error", "engine_died")
}

/// An error event and the end marker, for a stream that cannot go on.
pub fn engine_died_events() -> Vec<u8> {
    sse(&engine_died(), true)
}

/// The event that replaces an engine's error event which names the engine's address.
pub fn engine_error_event() -> Vec<u8> {
    sse(
        &error_body(
            "The inference engine reported an error",
            "server_error",
            "engine_error",
        ),
        false,
    )
}

/// The object that replaces an engine's refusal which cannot be shown.
pub fn engine_refused() -> Vec<u8> {
    error_body(
        "The inference engine refused the request",
        "invalid_request_error",
        "engine_refused",
    )
}

fn sse(object: &[u8], done: bool) -> Vec<u8> {
    let end: &[u8] = if done {
        b"\n\ndata: [DONE]\n\n"
    } else {
        b"\n\n"
    };
    [b"data: ", object, end].concat()
}
