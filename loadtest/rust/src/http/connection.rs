//! A client's keep-alive connection: sends a request and times its answer.

use std::collections::BTreeMap;
use std::time::Instant;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_END: &[u8] = b"\r\n\r\n";
const EVENT: &[u8] = b"data: ";
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
/// Bytes written before other connections get their turn.
const WRITE_BYTES_MAX: usize = 64 * 1024;

/// An answer with status 200.
pub struct Answer {
    /// When its first event arrived.
    pub first_event: Instant,
    /// When its last byte arrived.
    pub end: Instant,
    /// How many events it had, the final `[DONE]` included.
    pub events: u64,
}

/// A connection to one address.
pub struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    read: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// If nothing listens there.
    pub async fn open(address: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| format!("{address}: {error}"))?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            stream,
            request: Vec::new(),
            read: vec![0; 64 * 1024],
            answer: Vec::new(),
        })
    }

    /// The place for the next request's bytes.
    pub fn request(&mut self) -> &mut Vec<u8> {
        &mut self.request
    }

    /// Sends the request and reads its answer to the end.
    ///
    /// # Errors
    /// If the connection breaks, or the answer's status is not 200, or it has no event.
    pub async fn send(&mut self, header: &mut Counted) -> Result<Answer, String> {
        let broken = |error: std::io::Error| format!("the connection broke: {error}");
        for (number, part) in self.request.chunks(WRITE_BYTES_MAX).enumerate() {
            if number > 0 {
                tokio::task::yield_now().await;
            }
            self.stream.write_all(part).await.map_err(broken)?;
        }
        self.answer.clear();
        let (mut first_event, mut events, mut head) = (None, 0, None);
        loop {
            let read = self.stream.read(&mut self.read).await.map_err(broken)?;
            if read == 0 {
                return Err(format!(
                    "the connection was closed after {:?}",
                    String::from_utf8_lossy(&self.answer)
                ));
            }
            let now = Instant::now();
            let searched = self.answer.len();
            self.answer.extend_from_slice(&self.read[..read]);
            let from = match head {
                Some(_) => searched,
                None => match memmem::find(&self.answer, HEAD_END) {
                    None => continue,
                    Some(end) => {
                        if !self.answer.starts_with(b"HTTP/1.1 200") {
                            return Err(String::from_utf8_lossy(&self.answer).into_owned());
                        }
                        header.count(&self.answer[..end]);
                        head = Some(end);
                        end
                    }
                },
            };
            let arrived = memmem::find_iter(&self.answer[from..], EVENT).count() as u64;
            if arrived > 0 {
                first_event.get_or_insert(now);
                events += arrived;
            }
            if self.answer.ends_with(LAST_CHUNK) {
                let first_event = first_event.ok_or("an answer without an event")?;
                return Ok(Answer {
                    first_event,
                    end: now,
                    events,
                });
            }
            if self.answer.len() > 4 * WRITE_BYTES_MAX {
                let kept = self.answer.len() - LAST_CHUNK.len();
                self.answer.drain(..kept);
            }
        }
    }
}

/// Counts the values of one header of the answers.
#[derive(Clone, Default)]
pub struct Counted {
    /// Its name in lower case; empty: none is counted.
    name: String,
    /// How many answers had each value.
    pub values: BTreeMap<String, u64>,
}

impl Counted {
    /// Counts the values of the header of that name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_lowercase(),
            values: BTreeMap::new(),
        }
    }

    fn count(&mut self, head: &[u8]) {
        if self.name.is_empty() {
            return;
        }
        let head = String::from_utf8_lossy(head);
        let value = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(&self.name).then(|| value.trim())
        });
        let value = value.unwrap_or("none").to_owned();
        *self.values.entry(value).or_default() += 1;
    }
}
