//! The subscriber's side of an engine's socket, as bytes: ZMTP 3 with the NULL mechanism. Pure.
//!
//! ```text
//! greeting  ff 0×8 7f | 3 | minor | "NULL", padded to 20 | as-server | 0×31        each side, at once
//! frame     flags (1 more, 2 long, 4 command) | size, 1 byte or 8 | body
//! READY     command, each side: the peer's socket must be a PUB or an XPUB; then we subscribe
//! message   [topic, seq, payload], read from the right, as often as the engine says something
//! ```
//!
//! A general ZMQ library hands every frame over by itself, between threads. An engine's messages
//! are many and small, and what a publisher spends on them is mostly that. Here a read from the
//! socket, of many messages, is looked through once where it lies.
//!
//! The peer is not trusted: whatever breaks the protocol is a [`Broken`] connection, a message that
//! is none of an engine is counted, and no message is longer than [`MESSAGE_BYTES_MAX`].

use std::ops::Range;

/// Of all frames of a message together, with their heads.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

const GREETING_BYTES: usize = 64;
const VERSION_AT: usize = 10;
const MECHANISM: Range<usize> = 12..32;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const SEQ_BYTES: usize = 8;
const END_SEQ: u64 = u64::MAX;
/// Buffers that one large message made so large are not kept.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The peer broke the protocol, or is none that we can follow; the text says how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken(pub String);

/// Bytes in, an engine's messages out; one for each connection.
#[derive(Default, Debug)]
pub struct Subscriber {
    phase: Phase,
    buffer: Vec<u8>,
    /// All before it is looked through.
    at: usize,
    /// Where the message begins whose frames are being read.
    message_at: usize,
    frames: usize,
    /// The frame before the last one.
    penultimate: Range<usize>,
    last: Range<usize>,
    messages: Vec<(u64, Range<usize>)>,
    malformed: usize,
    first_malformed: Option<String>,
    outgoing: Vec<u8>,
}

/// How far the connection is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Phase {
    #[default]
    Greeting,
    Ready,
    Open,
}

/// What has come since the last [`Subscriber::taken`].
#[derive(Debug)]
pub struct Run<'a> {
    /// Sequence numbers, each with where its payload lies in `bytes`.
    pub messages: &'a [(u64, Range<usize>)],
    /// The bytes that came.
    pub bytes: &'a [u8],
    /// Messages that are none of an engine.
    pub malformed: usize,
    /// What is wrong with the first of them.
    pub first_malformed: Option<&'a str>,
}

impl Subscriber {
    /// What to send as soon as there is a connection.
    #[must_use]
    pub fn greeting() -> [u8; GREETING_BYTES] {
        let mut greeting = [0; GREETING_BYTES];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        // 3.0 and not 3.1: subscriptions are then plain messages, which every peer understands.
        greeting[VERSION_AT] = 3;
        greeting[MECHANISM.start..MECHANISM.start + 4].copy_from_slice(b"NULL");
        greeting
    }

    /// Whether the handshake is over: messages may have come.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Takes what came off the socket; `write` puts it into the buffer that it is given, whole.
    ///
    /// # Errors
    /// [`Broken`]: close the connection. What was complete before can still be taken.
    pub fn feed(&mut self, length: usize, write: impl FnOnce(&mut [u8])) -> Result<(), Broken> {
        let begun = self.buffer.len();
        self.buffer.resize(begun + length, 0);
        write(&mut self.buffer[begun..]);
        while self.step()? {}
        Ok(())
    }

    /// What is to be sent to the peer by now.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// What has come.
    #[must_use]
    pub fn run(&self) -> Run<'_> {
        Run {
            messages: &self.messages,
            bytes: &self.buffer,
            malformed: self.malformed,
            first_malformed: self.first_malformed.as_deref(),
        }
    }

    /// Forgets what [`Subscriber::run`] shows.
    pub fn taken(&mut self) {
        let gone = self.message_at;
        self.buffer.drain(..gone);
        if self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        }
        self.at -= gone;
        self.message_at = 0;
        for frame in [&mut self.penultimate, &mut self.last] {
            // Of a message that is gone too, they mean nothing any more.
            *frame = frame.start.saturating_sub(gone)..frame.end.saturating_sub(gone);
        }
        self.messages.clear();
        self.malformed = 0;
        self.first_malformed = None;
    }

    /// Goes on by a greeting or a frame; false: there is no whole one.
    fn step(&mut self) -> Result<bool, Broken> {
        if self.phase == Phase::Greeting {
            return self.greet();
        }
        let Some((flags, body)) = self.frame()? else {
            return Ok(false);
        };
        self.at = body.end;
        if flags & COMMAND != 0 {
            if flags & MORE != 0 || self.frames > 0 {
                return Err(Broken("a command within a message".into()));
            }
            self.message_at = self.at;
            self.on_command(body)?;
        } else if self.phase == Phase::Ready {
            return Err(Broken("a message before the handshake's end".into()));
        } else {
            self.frames += 1;
            self.penultimate = std::mem::replace(&mut self.last, body);
            if flags & MORE == 0 {
                self.end_message();
            }
        }
        Ok(true)
    }

    fn greet(&mut self) -> Result<bool, Broken> {
        let said = &self.buffer[..];
        if said.first().is_some_and(|byte| *byte != 0xff)
            || said.get(9).is_some_and(|byte| byte & 1 == 0)
        {
            return Err(Broken("it does not speak ZMTP 3".into()));
        }
        // An older peer's greeting is shorter: do not wait for the rest.
        if said.get(VERSION_AT).is_some_and(|major| *major < 3) {
            return Err(Broken(format!(
                "it speaks ZMTP {}, not 3",
                said[VERSION_AT]
            )));
        }
        if said.len() < GREETING_BYTES {
            return Ok(false);
        }
        let mechanism = said[MECHANISM].trim_ascii_end();
        let mechanism = mechanism
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        if mechanism != b"NULL" {
            let named = String::from_utf8_lossy(mechanism);
            return Err(Broken(format!("it demands the mechanism {named:?}")));
        }
        self.at = GREETING_BYTES;
        self.message_at = self.at;
        self.phase = Phase::Ready;
        self.send(COMMAND, b"\x05READY\x0bSocket-Type\0\0\0\x03SUB");
        Ok(true)
    }

    /// The flags and the body of the next frame, once it is whole.
    fn frame(&self) -> Result<Option<(u8, Range<usize>)>, Broken> {
        let rest = &self.buffer[self.at..];
        let (flags, size, head) = match *rest {
            [flags, size, ..] if flags & LONG == 0 => (flags, u64::from(size), 2),
            [flags, a, b, c, d, e, f, g, h, ..] => {
                (flags, u64::from_be_bytes([a, b, c, d, e, f, g, h]), 9)
            }
            _ => return Ok(None),
        };
        let before = self.at - self.message_at + head;
        match usize::try_from(size) {
            Ok(size) if size <= MESSAGE_BYTES_MAX - before.min(MESSAGE_BYTES_MAX) => {
                let body = self.at + head..self.at + head + size;
                Ok((body.end <= self.buffer.len()).then_some((flags, body)))
            }
            _ => Err(Broken(format!(
                "a message of more than {MESSAGE_BYTES_MAX} bytes"
            ))),
        }
    }

    fn end_message(&mut self) {
        self.message_at = self.at;
        let frames = std::mem::take(&mut self.frames);
        let seq = &self.buffer[self.penultimate.clone()];
        let what = if frames < 2 {
            format!("{frames} frames; a sequence number and a payload are expected")
        } else if let Ok(seq) = <[u8; SEQ_BYTES]>::try_from(seq) {
            let seq = u64::from_be_bytes(seq);
            if seq != END_SEQ {
                self.messages.push((seq, self.last.clone()));
                return;
            }
            if self.last.is_empty() {
                return; // a replay's end, which says nothing here
            }
            "the end marker with a payload".into()
        } else {
            format!("a sequence number of {} bytes; 8 are expected", seq.len())
        };
        self.malformed += 1;
        self.first_malformed.get_or_insert(what);
    }

    fn on_command(&mut self, body: Range<usize>) -> Result<(), Broken> {
        let body = &self.buffer[body];
        let Some((name, rest)) = named(body) else {
            return Err(Broken("a command without a name".into()));
        };
        match (self.phase, name) {
            (Phase::Ready, b"READY") => {
                let kind = socket_type(rest).ok_or_else(|| Broken("a READY cut short".into()))?;
                if kind != b"PUB" && kind != b"XPUB" {
                    let kind = String::from_utf8_lossy(kind);
                    return Err(Broken(format!("its socket is a {kind:?}, not a PUB")));
                }
                self.phase = Phase::Open;
                self.send(0, b"\x01"); // subscribe to every topic
            }
            (_, b"ERROR") => {
                let reason = named(rest).map(|(reason, _)| reason).unwrap_or_default();
                let reason = String::from_utf8_lossy(reason).into_owned();
                return Err(Broken(format!("it refuses us: {reason:?}")));
            }
            (Phase::Ready, _) => return Err(Broken("its handshake is not the one of NULL".into())),
            (_, b"PING") => {
                let context = rest.get(2..).unwrap_or_default();
                let pong = [b"\x04PONG", context].concat();
                if context.len() > 16 {
                    return Err(Broken("a PING of too many bytes".into()));
                }
                self.send(COMMAND, &pong);
            }
            _ => (), // of no use to us
        }
        Ok(())
    }

    /// Queues a frame of less than 256 bytes.
    fn send(&mut self, flags: u8, body: &[u8]) {
        self.outgoing.extend([flags, body.len() as u8]);
        self.outgoing.extend_from_slice(body);
    }
}

/// A text with its length before it, and what follows.
fn named(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// The property of a READY's; empty if there is none.
fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    while !properties.is_empty() {
        let (name, rest) = named(properties)?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, rest) = rest.split_at_checked(length)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        properties = rest;
    }
    Some(b"")
}
