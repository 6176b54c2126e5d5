//! The service in front: `FindMatches` is answered here, straight from HTTP/2 frames; every other
//! path goes to the generated services.
//!
//! tonic's own unary path decodes into messages of vectors and wraps bodies several times over; at
//! tens of thousands of calls a second on one core that is most of a call's cost.

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

use super::find_matches::{self, PREFIX_LEN, REQUEST_BYTES_MAX};
use super::stream::FRAME_BYTES_MAX;
use crate::cell::Cell;
use crate::counters::Count;

const FIND_MATCHES: &str = "/kvatlas.v1.Indexer/FindMatches";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Everything the server answers.
#[derive(Clone)]
pub struct Front {
    cell: Arc<Cell>,
    routes: Routes,
}

impl Front {
    /// `routes` are the generated services, `Indexer` among them.
    pub fn new(cell: Arc<Cell>, routes: Routes) -> Self {
        Self { cell, routes }
    }
}

type Answer = Result<http::Response<Reply>, Infallible>;

impl Service<http::Request<tonic::body::Body>> for Front {
    type Response = http::Response<Reply>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        if request.uri().path() == FIND_MATCHES {
            let cell = Arc::clone(&self.cell);
            return Box::pin(async move { Ok(unary(&cell, request.into_body()).await) });
        }
        let answer = self.routes.call(request);
        Box::pin(async move { answer.await.map(|response| response.map(Reply::Other)) })
    }
}

async fn unary(cell: &Cell, body: tonic::body::Body) -> http::Response<Reply> {
    let result = match read_message(body).await {
        Ok(message) => find_matches::answer(cell, &message),
        Err(status) => {
            cell.counters.add(Count::FindUnread);
            Err(status)
        }
    };
    match result {
        Ok(data) => {
            let mut response = http::Response::new(Reply::Unary(Unary::Data(data)));
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            response
        }
        Err(status) => status.into_http(),
    }
}

/// The one message of a unary call, without its prefix.
async fn read_message(mut body: tonic::body::Body) -> Result<Bytes, Status> {
    // A small request comes in one frame and is never copied.
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

/// Bytes of prefix and message together, once the prefix is there.
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
        return Err(find_matches::too_large());
    }
    Ok(Some(PREFIX_LEN + len))
}

/// A response's body: one message and its trailers, or whatever a generated service made.
pub enum Reply {
    /// Of `FindMatches`.
    Unary(Unary),
    /// Of all else.
    Other(tonic::body::Body),
}

/// What is still to be sent of one message.
pub enum Unary {
    /// The message, or the rest of it.
    Data(Bytes),
    /// Status OK.
    Trailers,
    /// Nothing.
    Done,
}

impl Default for Reply {
    fn default() -> Self {
        Self::Unary(Unary::Done)
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let unary = match self.get_mut() {
            Self::Other(body) => return Pin::new(body).poll_frame(cx),
            Self::Unary(unary) => unary,
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
            Self::Unary(unary) => matches!(unary, Unary::Done),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Other(body) => body.size_hint(),
            Self::Unary(_) => SizeHint::default(),
        }
    }
}
