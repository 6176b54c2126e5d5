//! Engines that answer at once: the backend of the frontend's benchmark.
//!
//! Each engine streams `max_tokens` events: the first at once, each later one an interval after the one
//! before and in its own packet, as engines do. A body above 1 MiB is read and dropped, and answered with one
//! event. Each GET gets an answer with which routers under test accept the engine as healthy.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

const BODY_BYTES_KEPT: usize = 1 << 20;
const MAX_TOKENS: &[u8] = b"\"max_tokens\":";
const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\
                           Transfer-Encoding: chunked\r\n\r\n";

/// The bytes of all answers, encoded once.
pub struct Answers {
    interval: Duration,
    only: Vec<u8>,
    first: Vec<u8>,
    token: Vec<u8>,
    last: Vec<u8>,
    metrics: Vec<u8>,
    facts: Vec<u8>,
}

impl Answers {
    /// Encodes them for a model of that name.
    pub fn new(model: &str, interval: Duration) -> Self {
        let token = event(model, "null");
        let last = event(model, "\"length\"") + &chunk("data: [DONE]\n\n") + "0\r\n\r\n";
        let facts = format!(
            "{{\"object\": \"list\", \"data\": [{{\"id\": {model:?}, \"object\": \"model\", \"owned_by\": \"vllm\", \
             \"root\": {model:?}, \"max_model_len\": 1000000}}], \"status\": \"ok\", \"version\": \"0\", \
             \"model_path\": {model:?}, \"served_model_name\": {model:?}, \"is_generation\": true}}"
        );
        let metrics = "vllm:num_requests_running{model_name=\"bench\"} 0\n\
                       vllm:num_requests_waiting{model_name=\"bench\"} 0\n";
        Self {
            interval,
            only: format!("{STREAM_HEAD}{last}").into_bytes(),
            first: format!("{STREAM_HEAD}{token}").into_bytes(),
            token: token.into_bytes(),
            last: last.into_bytes(),
            metrics: plain(metrics, "text/plain"),
            facts: plain(&facts, "application/json"),
        }
    }
}

fn event(model: &str, finish_reason: &str) -> String {
    chunk(&format!(
        "data: {{\"id\": \"chatcmpl-bench\", \"object\": \"chat.completion.chunk\", \"created\": 1, \
         \"model\": {model:?}, \"choices\": [{{\"index\": 0, \"delta\": {{\"role\": \"assistant\", \
         \"content\": \" word\"}}, \"logprobs\": null, \"finish_reason\": {finish_reason}}}]}}\n\n"
    ))
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn plain(text: &str, kind: &str) -> Vec<u8> {
    let length = text.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{text}")
        .into_bytes()
}

/// Serves a listener until its runtime ends.
///
/// # Errors
/// If it cannot accept.
pub async fn serve(listener: TcpListener, answers: Rc<Answers>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let answers = Rc::clone(&answers);
        // A client that hangs up ends its connection; there is nothing to report.
        tokio::task::spawn_local(async move { converse(stream, &answers).await });
    }
}

/// Answers one connection's requests.
async fn converse(mut stream: TcpStream, answers: &Answers) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(64 * 1024);
    loop {
        let head = loop {
            if let Some(end) = memmem::find(&buffer, b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        if buffer.starts_with(b"GET ") || buffer.starts_with(b"HEAD ") {
            let is_metrics = buffer.starts_with(b"GET /metrics");
            let answer = if is_metrics {
                &answers.metrics
            } else {
                &answers.facts
            };
            stream.write_all(answer).await?;
            buffer.drain(..head);
            continue;
        }
        let events = match content_length(&buffer[..head]) {
            Some(length) if length <= BODY_BYTES_KEPT => {
                read_until(&mut stream, &mut buffer, |read| read.len() >= head + length).await?;
                let events = max_tokens(&buffer[head..head + length]);
                buffer.drain(..head + length);
                events
            }
            Some(length) => {
                let mut left = length - (buffer.len() - head);
                while left > 0 {
                    buffer.clear();
                    left = left.saturating_sub(stream.read_buf(&mut buffer).await?.max(1));
                }
                buffer.clear();
                1
            }
            None => {
                read_until(&mut stream, &mut buffer, |read| {
                    read.ends_with(b"0\r\n\r\n")
                })
                .await?;
                let events = max_tokens(&buffer[head..]);
                buffer.clear();
                events
            }
        };
        answer(&mut stream, answers, events).await?;
    }
}

async fn read_until(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    complete: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    while !complete(buffer) {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

async fn answer(stream: &mut TcpStream, answers: &Answers, events: u32) -> io::Result<()> {
    if events <= 1 {
        return stream.write_all(&answers.only).await;
    }
    stream.write_all(&answers.first).await?;
    let mut due = Instant::now();
    for left in (1..events).rev() {
        due += answers.interval;
        tokio::time::sleep_until(due).await;
        let bytes = if left > 1 {
            &answers.token
        } else {
            &answers.last
        };
        stream.write_all(bytes).await?;
    }
    Ok(())
}

/// The body's length; `None`: it comes in chunks.
fn content_length(head: &[u8]) -> Option<usize> {
    String::from_utf8_lossy(head).lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let wanted = name.eq_ignore_ascii_case("content-length");
        wanted.then(|| value.trim().parse().ok())?
    })
}

/// The request's `max_tokens`; 1 if it has none. Routers may write the fields in another order.
fn max_tokens(body: &[u8]) -> u32 {
    let Some(at) = memmem::find(body, MAX_TOKENS) else {
        return 1;
    };
    let digits = body[at + MAX_TOKENS.len()..].iter();
    digits
        .skip_while(|byte| byte.is_ascii_whitespace())
        .map_while(|byte| char::from(*byte).to_digit(10))
        .fold(0, |number, digit| number * 10 + digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_wherever_its_fields_are() {
        assert_eq!(max_tokens(b"{\"max_tokens\": 12, \"messages\": []}"), 12);
        assert_eq!(max_tokens(b"{\"messages\":[],\"max_tokens\":7}"), 7);
        assert_eq!(max_tokens(b"{}"), 1);
        assert_eq!(
            content_length(b"POST / HTTP/1.1\r\ncontent-LENGTH:  3\r\n"),
            Some(3)
        );
        assert_eq!(content_length(b"POST / HTTP/1.1\r\nHost: x\r\n"), None);
    }
}
