//! Cuts a stream of server-sent events behind whole events.
//!
//! An engine that dies in the middle of an event must not make the client see half an event: official clients fail on it
//! with a JSON error instead of the real one. So the tail behind the last event is held back until the rest of it arrives.

use bytes::{Bytes, BytesMut};
use memchr::memrchr;

/// A larger event is forwarded in parts: held back, it would cost memory without bound.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Holds back the incomplete event at the end of what has arrived.
#[derive(Default)]
pub struct EventCutter {
    held: BytesMut,
}

impl EventCutter {
    /// The whole events that are complete with this chunk; empty: none is. A chunk that ends with an event is not copied.
    pub fn push(&mut self, chunk: Bytes) -> Bytes {
        if self.held.is_empty() {
            let end = end_of_events(&chunk, 0);
            self.held.extend_from_slice(&chunk[end..]);
            return self.checked(chunk.slice(..end));
        }
        let seen = self.held.len().saturating_sub(3);
        self.held.extend_from_slice(&chunk);
        let end = end_of_events(&self.held, seen);
        let events = self.held.split_to(end).freeze();
        self.checked(events)
    }

    /// The rest, where the stream has ended well.
    pub fn finish(self) -> Bytes {
        self.held.freeze()
    }

    fn checked(&mut self, events: Bytes) -> Bytes {
        if self.held.len() > EVENT_BYTES_MAX && events.is_empty() {
            return self.held.split().freeze();
        }
        events
    }
}

/// Where the last whole event ends, if it ends at or behind `from`; else 0. Events end with an empty line, whose line ends
/// are LF or CRLF.
fn end_of_events(bytes: &[u8], from: usize) -> usize {
    let mut end = bytes.len();
    while let Some(at) = memrchr(b'\n', &bytes[from..end]).map(|at| from + at) {
        let line = bytes[..at].strip_suffix(b"\r").unwrap_or(&bytes[..at]);
        if line.ends_with(b"\n") {
            return at + 1;
        }
        end = at;
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_events_pass_and_a_tail_waits() {
        let mut cutter = EventCutter::default();
        assert_eq!(cutter.push("data: 1\n\ndata: 2".into()), "data: 1\n\n");
        assert_eq!(cutter.push("\n".into()), "");
        assert_eq!(cutter.push("\ndata: 3\r\n\r".into()), "data: 2\n\n");
        assert_eq!(cutter.push("\n".into()), "data: 3\r\n\r\n");
        assert_eq!(cutter.push(": a comment".into()), "");
        assert_eq!(cutter.finish(), ": a comment");
    }

    #[test]
    fn an_event_without_end_is_bounded() {
        let mut cutter = EventCutter::default();
        let chunk = Bytes::from(vec![b'x'; 600_000]);
        assert_eq!(cutter.push(chunk.clone()).len(), 0);
        assert_eq!(cutter.push(chunk).len(), 1_200_000);
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_bytes_in_whole_events(
            text in "(data: [a-c]{0,3}(\n|\r\n){1,2}){0,8}[a-c]{0,3}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
        ) {
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            places.extend([0, text.len()]);
            places.sort_unstable();
            let mut cutter = EventCutter::default();
            let mut passed = String::new();
            for pair in places.windows(2) {
                let events = cutter.push(Bytes::copy_from_slice(&text.as_bytes()[pair[0]..pair[1]]));
                passed.push_str(std::str::from_utf8(&events).expect("ASCII"));
                prop_assert!(passed.is_empty() || passed.ends_with("\n\n") || passed.ends_with("\n\r\n"));
            }
            passed.push_str(std::str::from_utf8(&cutter.finish()).expect("ASCII"));
            prop_assert_eq!(passed, text);
        }
    }
}
