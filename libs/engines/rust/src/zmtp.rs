//! The subscriber's side of an engine's socket, as bytes: ZMTP 3 with the NULL mechanism.
//!
//! ```text
//! greeting  ff 0×8 7f | 3 | minor | "NULL", padded to 20 | as-server | 0×31        each side, at once
//! frame     flags (1 more, 2 long, 4 command) | size, 1 byte or 8 | body
//! READY     command, each side: the peer's socket must be a PUB or an XPUB; then we subscribe
//! message   [topic, seq, payload]; the frames are read from the right
//! ```
//!
//! A general ZMQ library hands every frame over by itself, between threads. An engine's messages are
//! many and small, and that would be most of a publisher's cost. Here all messages of one read from
//! the socket are parsed in one pass, in place.
//!
//! The peer is not trusted: a violation of the protocol is a [`ProtocolError`], a message that is no
//! engine's is counted, and no message is longer than [`MESSAGE_BYTES_MAX`].

use std::ops::Range;

/// The largest message: all its frames together, with their heads.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

const GREETING_BYTES: usize = 64;
const VERSION_AT: usize = 10;
const MECHANISM: Range<usize> = 12..32;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const SEQ_BYTES: usize = 8;
const END_SEQ: u64 = u64::MAX;
/// A buffer that a large message made larger than this is given back.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The peer broke the protocol, or is not an engine that we can follow; the text says why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProtocolError(pub String);

/// One connection: bytes in, an engine's messages out.
#[derive(Default, Debug)]
pub struct Subscriber {
    phase: Phase,
    buffer: Vec<u8>,
    /// Everything before it is parsed.
    at: usize,
    /// The start of the message whose frames are being read.
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

/// The progress of the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Phase {
    #[default]
    Greeting,
    Ready,
    Open,
}

/// The messages received since the last [`Subscriber::clear_received`].
#[derive(Debug)]
pub struct Received<'a> {
    /// Sequence numbers, each with the range of its payload in `bytes`.
    pub messages: &'a [(u64, Range<usize>)],
    /// The received bytes.
    pub bytes: &'a [u8],
    /// The number of messages that are not an engine's.
    pub malformed: usize,
    /// The first such message's error.
    pub first_malformed: Option<&'a str>,
}

impl Subscriber {
    /// The bytes to send as soon as the connection is made.
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

    /// Whether the handshake is over: messages may have been received.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Parses bytes that came off the socket. `write` fills the whole buffer that it is given.
    ///
    /// # Errors
    /// [`ProtocolError`]: close the connection. Messages complete before it can still be taken.
    pub fn receive(
        &mut self,
        length: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), ProtocolError> {
        let begun = self.buffer.len();
        self.buffer.resize(begun + length, 0);
        write(&mut self.buffer[begun..]);
        while self.step()? {}
        Ok(())
    }

    /// Takes the bytes that are to be sent to the peer.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// The messages received.
    #[must_use]
    pub fn received(&self) -> Received<'_> {
        Received {
            messages: &self.messages,
            bytes: &self.buffer,
            malformed: self.malformed,
            first_malformed: self.first_malformed.as_deref(),
        }
    }

    /// Forgets what [`Subscriber::received`] shows.
    pub fn clear_received(&mut self) {
        let gone = self.message_at;
        self.buffer.drain(..gone);
        if self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        }
        self.at -= gone;
        self.message_at = 0;
        for frame in [&mut self.penultimate, &mut self.last] {
            // The range of a frame that was removed is not used again.
            *frame = frame.start.saturating_sub(gone)..frame.end.saturating_sub(gone);
        }
        self.messages.clear();
        self.malformed = 0;
        self.first_malformed = None;
    }

    /// Parses a greeting or a frame; false: none is whole yet.
    fn step(&mut self) -> Result<bool, ProtocolError> {
        if self.phase == Phase::Greeting {
            return self.greet();
        }
        let Some((flags, body)) = self.frame()? else {
            return Ok(false);
        };
        self.at = body.end;
        if flags & COMMAND != 0 {
            if flags & MORE != 0 || self.frames > 0 {
                return Err(ProtocolError("a command within a message".into()));
            }
            self.message_at = self.at;
            self.on_command(body)?;
        } else if self.phase == Phase::Ready {
            return Err(ProtocolError("a message before the handshake's end".into()));
        } else {
            self.frames += 1;
            self.penultimate = std::mem::replace(&mut self.last, body);
            if flags & MORE == 0 {
                self.end_message();
            }
        }
        Ok(true)
    }

    fn greet(&mut self) -> Result<bool, ProtocolError> {
        let greeting = &self.buffer[..];
        if greeting.first().is_some_and(|byte| *byte != 0xff)
            || greeting.get(9).is_some_and(|byte| byte & 1 == 0)
        {
            return Err(ProtocolError("it does not speak ZMTP 3".into()));
        }
        // An older peer's greeting is shorter: do not wait for more.
        if greeting.get(VERSION_AT).is_some_and(|major| *major < 3) {
            return Err(ProtocolError(format!(
                "it speaks ZMTP {}, not 3",
                greeting[VERSION_AT]
            )));
        }
        if greeting.len() < GREETING_BYTES {
            return Ok(false);
        }
        let mechanism = greeting[MECHANISM].trim_ascii_end();
        let mechanism = mechanism
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        if mechanism != b"NULL" {
            let named = String::from_utf8_lossy(mechanism);
            return Err(ProtocolError(format!("it demands the mechanism {named:?}")));
        }
        self.at = GREETING_BYTES;
        self.message_at = self.at;
        self.phase = Phase::Ready;
        self.send(COMMAND, b"\x05READY\x0bSocket-Type\0\0\0\x03SUB");
        Ok(true)
    }

    /// The flags and the body of the next frame, once it is whole.
    fn frame(&self) -> Result<Option<(u8, Range<usize>)>, ProtocolError> {
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
            _ => Err(ProtocolError(format!(
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
                return; // the end of a replay, which means nothing here
            }
            "the end marker with a payload".into()
        } else {
            format!("a sequence number of {} bytes; 8 are expected", seq.len())
        };
        self.malformed += 1;
        self.first_malformed.get_or_insert(what);
    }

    fn on_command(&mut self, body: Range<usize>) -> Result<(), ProtocolError> {
        let body = &self.buffer[body];
        let Some((name, rest)) = named(body) else {
            return Err(ProtocolError("a command without a name".into()));
        };
        match (self.phase, name) {
            (Phase::Ready, b"READY") => {
                let kind =
                    socket_type(rest).ok_or_else(|| ProtocolError("a READY cut short".into()))?;
                if kind != b"PUB" && kind != b"XPUB" {
                    let kind = String::from_utf8_lossy(kind);
                    return Err(ProtocolError(format!(
                        "its socket is a {kind:?}, not a PUB"
                    )));
                }
                self.phase = Phase::Open;
                self.send(0, b"\x01"); // subscribe to every topic
            }
            (_, b"ERROR") => {
                let reason = named(rest).map(|(reason, _)| reason).unwrap_or_default();
                let reason = String::from_utf8_lossy(reason).into_owned();
                return Err(ProtocolError(format!("it refuses us: {reason:?}")));
            }
            (Phase::Ready, _) => {
                return Err(ProtocolError("its handshake is not the one of NULL".into()));
            }
            (_, b"PING") => {
                let context = rest.get(2..).unwrap_or_default();
                let pong = [b"\x04PONG", context].concat();
                if context.len() > 16 {
                    return Err(ProtocolError("a PING of too many bytes".into()));
                }
                self.send(COMMAND, &pong);
            }
            _ => (), // no other command concerns a subscriber
        }
        Ok(())
    }

    /// Queues a frame of less than 256 bytes.
    fn send(&mut self, flags: u8, body: &[u8]) {
        self.outgoing.extend([flags, body.len() as u8]);
        self.outgoing.extend_from_slice(body);
    }
}

/// Splits off a text that its length precedes.
fn named(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// The socket type in the properties of a READY; empty if none is named.
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
