//! gRPC over HTTP/2: one unary call, and what every call needs of headers, framing and statuses.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::Reason;
use h2::client::ResponseFuture;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version, header};
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::connection::{Connection, ConnectionState};

/// Length of the prefix of every message: the compression flag and the message's length.
pub const PREFIX_BYTES: usize = 5;
/// Limit of one answer; a million workers fit.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Limit of every wait; a longer one would overflow a timer.
pub const WAIT_MAX: Duration = Duration::from_secs(24 * 3_600);
/// gRPC allows at most eight digits in a timeout.
const TIMEOUT_DIGITS_MAX: u128 = 99_999_999;

/// Sends one message to `uri` and returns the body of the answer.
///
/// The caller limits the time; dropping the future cancels the call at the server. `timeout` is the
/// limit that the server is told.
pub async fn unary(
    mut state: watch::Receiver<ConnectionState>,
    uri: &Uri,
    message: Bytes,
    timeout: Duration,
) -> Result<Bytes, Status> {
    let connection = usable(&mut state).await?;
    let timeout_report = TimeoutReport(Some(&connection));
    let mut sender = match connection.sender.clone().ready().await {
        Ok(sender) => sender,
        Err(error) => {
            connection.report_refused();
            return Err(Status::unavailable(error.to_string()));
        }
    };
    let request = request(uri, Some(timeout));
    let (answer, mut stream) = sender
        .send_request(request, false)
        .map_err(|error| status(&error))?;
    stream
        .send_data(message, true)
        .map_err(|error| status(&error))?;
    let answer = receive(answer).await;
    timeout_report.dismiss();
    answer
}

/// Reports a time-out on the connection if the call is dropped before it was answered.
struct TimeoutReport<'a>(Option<&'a Connection>);

impl TimeoutReport<'_> {
    fn dismiss(mut self) {
        self.0 = None;
    }
}

impl Drop for TimeoutReport<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.0 {
            connection.report_timed_out();
        }
    }
}

async fn usable(state: &mut watch::Receiver<ConnectionState>) -> Result<Connection, Status> {
    let settled = state
        .wait_for(|state| !matches!(state, ConnectionState::Connecting))
        .await
        .map_err(|_| Status::cancelled("the channel is closed"))?;
    match &*settled {
        ConnectionState::Up(connection) => Ok(connection.clone()),
        ConnectionState::Down(reason) => Err(Status::unavailable(&**reason)),
        ConnectionState::Connecting => Err(Status::unavailable("connecting")),
    }
}

/// Returns the head of a call; `timeout` is the limit that the server is told, None: no limit.
pub fn request(uri: &Uri, timeout: Option<Duration>) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri.clone();
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.reserve(4);
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    headers.insert(
        header::USER_AGENT,
        HeaderValue::from_static(concat!("kvatlas-client/", env!("CARGO_PKG_VERSION"))),
    );
    // Digits and a letter are always a valid header value.
    if let Some(Ok(timeout)) = timeout.map(|limit| HeaderValue::try_from(grpc_timeout(limit))) {
        headers.insert("grpc-timeout", timeout);
    }
    request
}

/// Formats a timeout in the finest unit that eight digits allow, rounded up.
fn grpc_timeout(timeout: Duration) -> String {
    let micros = timeout.as_nanos().div_ceil(1_000);
    if micros <= TIMEOUT_DIGITS_MAX {
        return format!("{micros}u");
    }
    let millis = micros.div_ceil(1_000);
    if millis <= TIMEOUT_DIGITS_MAX {
        return format!("{millis}m");
    }
    format!("{}S", millis.div_ceil(1_000).min(TIMEOUT_DIGITS_MAX))
}

async fn receive(answer: ResponseFuture) -> Result<Bytes, Status> {
    let (head, mut body) = answer.await.map_err(|error| status(&error))?.into_parts();
    if head.status != StatusCode::OK {
        return Err(not_grpc(head.status));
    }
    // An error without a message has its status among the first headers.
    if let Some(early) = Status::from_header_map(&head.headers) {
        return Err(early);
    }
    let mut bytes = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(|error| status(&error))?;
        let room = body.flow_control().release_capacity(data.len());
        room.map_err(|error| status(&error))?;
        if bytes.len() + data.len() > ANSWER_BYTES_MAX {
            return Err(Status::resource_exhausted("the answer is too long"));
        }
        bytes.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.map_err(|error| status(&error))?;
    outcome(trailers.as_ref())?;
    Ok(bytes.freeze())
}

/// Returns the status that ends a call, from its trailers.
pub fn outcome(trailers: Option<&HeaderMap>) -> Result<(), Status> {
    match trailers.and_then(Status::from_header_map) {
        Some(status) if status.code() == Code::Ok => Ok(()),
        Some(status) => Err(status),
        None => Err(Status::unknown("the server's answer has no grpc-status")),
    }
}

/// Maps an HTTP status to a gRPC one, as gRPC's document on them says: a proxy answered.
pub fn not_grpc(http: StatusCode) -> Status {
    let code = match http.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("HTTP status {http} instead of gRPC"))
}

/// Maps an HTTP/2 error to a gRPC status; a lost connection is UNAVAILABLE.
pub fn status(error: &h2::Error) -> Status {
    let code = match error.reason() {
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        _ => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_keep_to_eight_digits() {
        assert_eq!(grpc_timeout(Duration::from_millis(5)), "5000u");
        assert_eq!(grpc_timeout(Duration::from_nanos(1)), "1u");
        assert_eq!(grpc_timeout(Duration::from_secs(99)), "99000000u");
        assert_eq!(grpc_timeout(Duration::from_secs(100)), "100000m");
        assert_eq!(grpc_timeout(Duration::from_secs(200_000)), "200000S");
        assert_eq!(grpc_timeout(Duration::MAX), "99999999S");
    }
}
