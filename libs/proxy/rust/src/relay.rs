//! Relays an engine's answer to the client.
//!
//! Events are forwarded as they complete. An unstreamed answer is sent once it is whole, so that an engine that dies in the
//! middle becomes an error instead of half an answer; a large one is forwarded as it arrives. No answer is parsed.

use std::io;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use memchr::memmem;

use crate::downstream::{BodyLength, Downstream};
use crate::error;
use crate::exchange::{Ending, EngineAddress, ErrorForm, Forward, TAIL_BYTES};
use crate::headers;
use crate::limits::Limits;
use crate::sse::EventCutter;
use crate::upstream::EngineAnswer;

const LAST_EVENTS: [&[u8]; 5] = [
    b"[DONE]",
    b"\"message_stop\"",
    b"\"response.completed\"",
    b"\"response.incomplete\"",
    b"\"response.failed\"",
];
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Sends the answer to the client.
///
/// # Errors
/// The client has left.
pub async fn relay(
    answer: EngineAnswer,
    forward: &Forward,
    form: ErrorForm,
    limits: &Limits,
    down: &mut Downstream<'_>,
) -> io::Result<Ending> {
    let headers = headers::downstream(&answer.headers, forward);
    let status = answer.status;
    if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED {
        return refusal(answer, forward, form, headers, down).await;
    }
    if headers::is_event_stream(&answer.headers) {
        return events(answer, forward, form, &headers, down).await;
    }
    unstreamed(answer, form, &headers, limits, down).await
}

/// An engine's 4xx or 501 passes, unless it is too large, cannot be read, or names the engine's address.
async fn refusal(
    mut answer: EngineAnswer,
    forward: &Forward,
    form: ErrorForm,
    mut headers: HeaderMap,
    down: &mut Downstream<'_>,
) -> io::Result<Ending> {
    let status = answer.status;
    let mut body = BytesMut::from(&answer.first[..]);
    let is_whole = loop {
        match answer.body.next().await {
            Ok(None) => break true,
            Ok(Some(data)) if body.len() + data.len() <= REFUSAL_BYTES_MAX => {
                body.extend_from_slice(&data);
            }
            _ => break false,
        }
    };
    let is_compressed = headers.contains_key(header::CONTENT_ENCODING);
    if is_whole {
        answer.body.finish();
    }
    if is_whole && !is_compressed && !headers::mentions(&forward.engine, &body) {
        down.whole(status, &headers, &body).await?;
    } else {
        headers.remove(header::CONTENT_ENCODING);
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        down.whole(status, &headers, &error::engine_refused(form))
            .await?;
    }
    Ok(ending(status, Bytes::new()))
}

async fn events(
    mut answer: EngineAnswer,
    forward: &Forward,
    form: ErrorForm,
    headers: &HeaderMap,
    down: &mut Downstream<'_>,
) -> io::Result<Ending> {
    let status = answer.status;
    down.begin(status, headers, BodyLength::Unknown);
    let mut cutter = EventCutter::default();
    let mut tail = Tail::default();
    let mut chunk = std::mem::take(&mut answer.first);
    let broken = loop {
        tail.push(&chunk);
        let whole = cutter.push(chunk);
        if answer.body.is_ended() {
            let rest = [whole, cutter.finish()];
            return end_events(answer, forward, form, rest, tail, down).await;
        }
        if !whole.is_empty() {
            down.events(&without_address(&forward.engine, form, whole))
                .await?;
        }
        match answer.body.next().await {
            Ok(Some(next)) => chunk = next,
            Ok(None) if answer.body.is_delimited() || tail.is_last_event() => break None,
            Ok(None) => break Some("the connection was closed before the last event".to_owned()),
            Err(error) => break Some(error),
        }
    };
    if broken.is_some() {
        // The incomplete event behind the last whole one is dropped.
        down.chunk(&error::engine_died_events(form)).await?;
        down.end().await?;
        return Ok(Ending {
            status: status.as_u16(),
            broken,
            is_answered: true,
            tail: Bytes::new(),
        });
    }
    let rest = [Bytes::new(), cutter.finish()];
    end_events(answer, forward, form, rest, tail, down).await
}

/// Writes what is left of a stream that has ended well, and its end, at once.
async fn end_events(
    answer: EngineAnswer,
    forward: &Forward,
    form: ErrorForm,
    rest: [Bytes; 2],
    tail: Tail,
    down: &mut Downstream<'_>,
) -> io::Result<Ending> {
    answer.body.finish();
    let rest = without_address(&forward.engine, form, rest.concat().into());
    down.last(&rest).await?;
    Ok(ending(answer.status, tail.finish()))
}

/// Replaces error events that name the engine's address. Other events are the model's own words.
fn without_address(engine: &EngineAddress, form: ErrorForm, events: Bytes) -> Bytes {
    if memmem::find(&events, b"\"error\"").is_none() || !headers::mentions(engine, &events) {
        return events;
    }
    let mut kept = BytesMut::with_capacity(events.len());
    let mut rest = &events[..];
    while !rest.is_empty() {
        let end = memmem::find(rest, b"\n\n")
            .map(|at| at + 2)
            .into_iter()
            .chain(memmem::find(rest, b"\r\n\r\n").map(|at| at + 4))
            .min()
            .unwrap_or(rest.len());
        let event = &rest[..end];
        if memmem::find(event, b"\"error\"").is_some() && headers::mentions(engine, event) {
            kept.extend_from_slice(&error::engine_error_event(form));
        } else {
            kept.extend_from_slice(event);
        }
        rest = &rest[end..];
    }
    kept.freeze()
}

async fn unstreamed(
    mut answer: EngineAnswer,
    form: ErrorForm,
    headers: &HeaderMap,
    limits: &Limits,
    down: &mut Downstream<'_>,
) -> io::Result<Ending> {
    let status = answer.status;
    let mut parts = vec![answer.first];
    let mut size = parts[0].len();
    while size <= limits.answer_buffer_bytes_max {
        match answer.body.next().await {
            Ok(Some(data)) => {
                size += data.len();
                parts.push(data);
            }
            Ok(None) => {
                let whole = join(parts);
                if !answer.body.is_delimited() && !is_json(&whole) {
                    return died(
                        down,
                        form,
                        "the connection was closed inside an answer".to_owned(),
                    )
                    .await;
                }
                answer.body.finish();
                down.whole(status, headers, &whole).await?;
                let from = whole.len().saturating_sub(TAIL_BYTES);
                return Ok(ending(status, whole.slice(from..)));
            }
            Err(error) => return died(down, form, error).await,
        }
    }
    let length = match announced_length(&answer.headers) {
        Some(length) => BodyLength::Known(length),
        None => BodyLength::Unknown,
    };
    down.begin(status, headers, length);
    let mut tail = Tail::default();
    for part in parts {
        tail.push(&part);
        down.chunk(&part).await?;
    }
    loop {
        match answer.body.next().await {
            Ok(Some(data)) => {
                tail.push(&data);
                down.chunk(&data).await?;
            }
            Ok(None) => break,
            Err(error) => {
                return Ok(Ending {
                    status: status.as_u16(),
                    broken: Some(error),
                    is_answered: false,
                    tail: Bytes::new(),
                });
            }
        }
    }
    answer.body.finish();
    down.end().await?;
    Ok(ending(status, tail.finish()))
}

/// Nothing has been sent yet, so the client gets an error instead of half an answer.
async fn died(down: &mut Downstream<'_>, form: ErrorForm, error: String) -> io::Result<Ending> {
    let status = error::engine_died_status(form);
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    down.whole(status, &headers, &error::engine_died(form))
        .await?;
    Ok(Ending {
        status: status.as_u16(),
        broken: Some(error),
        is_answered: true,
        tail: Bytes::new(),
    })
}

fn ending(status: StatusCode, tail: Bytes) -> Ending {
    Ending {
        status: status.as_u16(),
        broken: None,
        is_answered: true,
        tail,
    }
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}

fn announced_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

fn join(mut parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        1 => parts.remove(0),
        _ => parts.concat().into(),
    }
}

/// The last bytes of an answer.
#[derive(Default)]
struct Tail {
    bytes: BytesMut,
}

impl Tail {
    fn push(&mut self, data: &[u8]) {
        if data.len() >= TAIL_BYTES {
            self.bytes.clear();
            self.bytes
                .extend_from_slice(&data[data.len() - TAIL_BYTES..]);
            return;
        }
        // Moving the kept bytes only when twice as many have come keeps a chunk cheap.
        if self.bytes.len() + data.len() > 2 * TAIL_BYTES {
            let from = self.bytes.len() - TAIL_BYTES;
            self.bytes.copy_within(from.., 0);
            self.bytes.truncate(TAIL_BYTES);
        }
        self.bytes.extend_from_slice(data);
    }

    /// Whether it has an event that ends a stream, in any of the APIs. Quotes inside a model's words are escaped.
    fn is_last_event(&self) -> bool {
        LAST_EVENTS
            .iter()
            .any(|mark| memmem::find(&self.bytes, mark).is_some())
    }

    fn finish(mut self) -> Bytes {
        let from = self.bytes.len().saturating_sub(TAIL_BYTES);
        self.bytes.split_off(from).freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_bytes() {
        for sizes in [
            vec![],
            vec![1],
            vec![5_000],
            vec![100; 300],
            vec![4_095, 2, 8_000, 3],
        ] {
            let mut tail = Tail::default();
            let mut all = Vec::new();
            for (at, size) in sizes.into_iter().enumerate() {
                let data = vec![at as u8; size];
                tail.push(&data);
                all.extend(data);
            }
            assert_eq!(tail.finish(), all[all.len().saturating_sub(TAIL_BYTES)..]);
        }
    }

    #[test]
    fn only_error_events_that_name_the_engine_are_replaced() {
        let engine = EngineAddress {
            host: "10.0.0.1".to_owned(),
            port: 80,
            is_tls: false,
        };
        let words = Bytes::from("data: {\"text\": \"10.0.0.1\"}\n\n");
        assert_eq!(
            without_address(&engine, ErrorForm::OpenAi, words.clone()),
            words
        );
        let error = b"data: {\"error\": \"at 10.0.0.1\"}\n\n";
        let both = Bytes::from([&words[..], error].concat());
        let cleaned = without_address(&engine, ErrorForm::OpenAi, both);
        assert!(cleaned.starts_with(&words) && memmem::find(&cleaned, b"engine_error").is_some());
        assert_eq!(memmem::find_iter(&cleaned, b"10.0.0.1").count(), 1);
    }
}
