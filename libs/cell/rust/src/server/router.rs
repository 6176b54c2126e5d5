//! Routes calls: `FindMatches` is answered here, straight from HTTP/2 frames; all others go to the generated services.
//!
//! tonic's own unary path decodes into messages of vectors and wraps bodies several times. At tens of thousands
//! of calls a second on one core that is most of a call's cost.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;
use tonic::service::Routes;
use tower_service::Service;

use super::connection::FRAME_BYTES_MAX;
use super::find_matches::{PREFIX_LEN, REQUEST_BYTES_MAX, answer, too_large};
use crate::cell::Cell;
use crate::counters::Count;

const FIND_MATCHES: &str = "/kvatlas.v1.Indexer/FindMatches";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The HTTP/2 service of one thread.
#[derive(Clone)]
pub struct Router {
    cell: Arc<Cell>,
    routes: Routes,
}

impl Router {
    /// `routes` are the generated services, including `Indexer`.
    pub fn new(cell: Arc<Cell>, routes: Routes) -> Self {
        Self { cell, routes }
    }
}

type Answer = Result<http::Response<ResponseBody>, Infallible>;

impl Service<http::Request<tonic::body::Body>> for Router {
    type Response = http::Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        if request.uri().path() == FIND_MATCHES {
            let cell = Arc::clone(&self.cell);
            return Box::pin(async move { Ok(find_matches(&cell, request.into_body()).await) });
        }
        let answer = self.routes.call(request);
        Box::pin(async move {
            answer
                .await
                .map(|response| response.map(ResponseBody::Other))
        })
    }
}

async fn find_matches(cell: &Cell, body: tonic::body::Body) -> http::Response<ResponseBody> {
    let result = match read_message(body).await {
        Ok(message) => answer(cell, &message),
        Err(status) => {
            cell.counters.add(Count::FindUnread);
            Err(status)
        }
    };
    match result {
        Ok(data) => {
            let mut response = http::Response::new(ResponseBody::FindMatches(Unary::Data(data)));
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            response
        }
        Err(status) => status.into_http(),
    }
}

/// Reads the message of a unary call, without its prefix.
async fn read_message(mut body: tonic::body::Body) -> Result<Bytes, Status> {
    // A small request comes in one frame and is not copied.
    let mut whole = Bytes::new();
    let mut joined = BytesMut::new();
    let mut expected = None;
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if whole.is_empty() {
            whole = data;
        } else {
            if joined.is_empty() {
                joined.extend_from_slice(&whole);
            }
            joined.extend_from_slice(&data);
        }
        let bytes: &[u8] = if joined.is_empty() { &whole } else { &joined };
        if expected.is_none() {
            expected = expected_len(bytes)?;
        }
        if let Some(expected) = expected.filter(|&expected| bytes.len() >= expected) {
            let message = if joined.is_empty() {
                whole
            } else {
                joined.freeze()
            };
            return Ok(message.slice(PREFIX_LEN..expected));
        }
    }
    Err(Status::internal("the request ends before its message does"))
}

/// Bytes of prefix and message together; None before the prefix is there.
fn expected_len(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some((prefix, _)) = bytes.split_first_chunk::<PREFIX_LEN>() else {
        return Ok(None);
    };
    let [compressed, a, b, c, d] = *prefix;
    if compressed != 0 {
        return Err(Status::unimplemented(
            "compressed requests are not supported",
        ));
    }
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if len > REQUEST_BYTES_MAX {
        return Err(too_large());
    }
    Ok(Some(PREFIX_LEN + len))
}

/// The body of a response.
pub enum ResponseBody {
    /// The answer of `FindMatches`: one message and its trailers.
    FindMatches(Unary),
    /// The response of a generated service.
    Other(tonic::body::Body),
}

/// The unsent rest of a unary answer.
pub enum Unary {
    /// The message, or the rest of it.
    Data(Bytes),
    /// The trailers with status OK.
    Trailers,
    /// Nothing.
    Done,
}

impl Default for ResponseBody {
    fn default() -> Self {
        Self::FindMatches(Unary::Done)
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let unary = match self.get_mut() {
            Self::Other(body) => return Pin::new(body).poll_frame(cx),
            Self::FindMatches(unary) => unary,
        };
        Poll::Ready(match std::mem::replace(unary, Unary::Done) {
            Unary::Data(mut data) => {
                let frame = data.split_to(data.len().min(FRAME_BYTES_MAX));
                *unary = if data.is_empty() {
                    Unary::Trailers
                } else {
                    Unary::Data(data)
                };
                Some(Ok(Frame::data(frame)))
            }
            Unary::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(trailers)))
            }
            Unary::Done => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Other(body) => body.is_end_stream(),
            Self::FindMatches(unary) => matches!(unary, Unary::Done),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Other(body) => body.size_hint(),
            Self::FindMatches(_) => SizeHint::default(),
        }
    }
}
