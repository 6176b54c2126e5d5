//! Errors as the official clients expect them: a status and a JSON object, in the form of the API that was called. No text of
//! a client's request and no address of an engine ever enters one.

use http::StatusCode;

use crate::exchange::ErrorForm;

/// A request that the proxy refuses by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: StatusCode,
    /// `code` of an OpenAI error object, and a metric's label.
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
    pub fn body(&self, form: ErrorForm) -> Vec<u8> {
        let kind = match (form, self.status) {
            (ErrorForm::Anthropic, StatusCode::PAYLOAD_TOO_LARGE) => "request_too_large",
            _ => "invalid_request_error",
        };
        error_body(form, &self.message, kind, self.code)
    }
}

/// `{"error": {"message", "type", "param", "code"}}`, or Anthropic's `{"type": "error", "error": {"type", "message"}}`.
fn error_body(form: ErrorForm, message: &str, kind: &str, code: &str) -> Vec<u8> {
    match form {
        ErrorForm::OpenAi => serde_json::json!({
            "error": {"message": message, "type": kind, "param": null, "code": code}
        }),
        ErrorForm::Anthropic => serde_json::json!({
            "type": "error", "error": {"type": kind, "message": message}
        }),
    }
    .to_string()
    .into_bytes()
}

/// `type` of an error that is not the client's.
fn server_error(form: ErrorForm) -> &'static str {
    match form {
        ErrorForm::OpenAi => "server_error",
        ErrorForm::Anthropic => "api_error",
    }
}

/// The status for a client whose engine died before the client got anything. Anthropic's API has no 502.
pub fn engine_died_status(form: ErrorForm) -> StatusCode {
    match form {
        ErrorForm::OpenAi => StatusCode::BAD_GATEWAY,
        ErrorForm::Anthropic => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The object for a client whose engine died after its first byte.
pub fn engine_died(form: ErrorForm) -> Vec<u8> {
    let message = "The inference engine failed while it was answering";
    error_body(form, message, server_error(form), "engine_died")
}

/// An error event for a stream that cannot go on, and the end marker where the API has one.
pub fn engine_died_events(form: ErrorForm) -> Vec<u8> {
    let mut events = error_event(form, &engine_died(form));
    if form == ErrorForm::OpenAi {
        events.extend_from_slice(b"data: [DONE]\n\n");
    }
    events
}

/// The event that replaces an engine's error event which names the engine's address.
pub fn engine_error_event(form: ErrorForm) -> Vec<u8> {
    let message = "The inference engine reported an error";
    let object = error_body(form, message, server_error(form), "engine_error");
    error_event(form, &object)
}

/// The object that replaces an engine's refusal which cannot be shown.
pub fn engine_refused(form: ErrorForm) -> Vec<u8> {
    let message = "The inference engine refused the request";
    error_body(form, message, "invalid_request_error", "engine_refused")
}

fn error_event(form: ErrorForm, object: &[u8]) -> Vec<u8> {
    let begin: &[u8] = match form {
        ErrorForm::OpenAi => b"data: ",
        ErrorForm::Anthropic => b"event: error\ndata: ",
    };
    [begin, object, b"\n\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_api_has_its_own_form() {
        let refused = Refused::too_large(10);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        assert_eq!(
            text(refused.body(ErrorForm::of("/v1/messages/count_tokens"))),
            r#"{"error":{"message":"The request body is larger than 10 bytes","type":"request_too_large"},"type":"error"}"#
        );
        assert!(text(refused.body(ErrorForm::of("/v1/messagesx"))).contains(r#""param":null"#));
        let anthropic = text(engine_died_events(ErrorForm::of("/v1/messages")));
        assert!(anthropic.starts_with("event: error\ndata: {") && !anthropic.contains("[DONE]"));
        assert!(text(engine_died_events(ErrorForm::OpenAi)).ends_with("data: [DONE]\n\n"));
    }
}
