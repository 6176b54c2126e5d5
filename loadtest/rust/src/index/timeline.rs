//! Turns a trace into an operation stream: a mock engine per worker, all their events on one timeline.
//!
//! Every request of the trace comes once per replica, with ids of its own. It is looked up when it
//! arrives. Its session's worker serves one prompt at a time and ends 1 ms and 10 µs per missing token
//! after it began; then it removes what it evicted and stores the prompt. Events that are not yet due
//! wait in a heap, so memory holds the caches and the backlog, but not the stream.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Seek, Write};

use crate::index::arrivals::{Arrival, Arrivals};
use crate::index::engine::{Engine, Event, Prompt, mix};
use crate::index::trace::{ID_TOKENS, Session, Trace};
use kvatlas_baselines::stream::{
    FLAG_BY_REQUEST, FLAG_NO_HUB, Op, Record, Shape, StreamError, StreamSink, Totals,
};

/// How to make a stream of a trace.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Making {
    /// Workers, at least one.
    pub workers: u32,
    /// Tokens per index block; divides those of an id.
    pub block_tokens: u32,
    /// How often the trace comes, side by side, each time with other ids.
    pub replicas: u32,
    /// Blocks that a worker holds, at least one.
    pub capacity: u32,
    /// Seed of the choice of workers.
    pub seed: u64,
    /// Hubs were left out of the trace; only noted in the header.
    pub without_hubs: bool,
    /// Requests choose workers one by one, not by session.
    pub by_request: bool,
    /// Time from the first arrival to the end of the last arrival step; `None`: as in the trace.
    pub span_ms: Option<u64>,
}

impl Making {
    fn shape(&self) -> Shape {
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        Shape {
            workers: self.workers,
            block_tokens: self.block_tokens,
            id_tokens: ID_TOKENS,
            replicas: self.replicas,
            capacity: self.capacity.into(),
            seed: self.seed,
            flags: flag(self.by_request, FLAG_BY_REQUEST) | flag(self.without_hubs, FLAG_NO_HUB),
        }
    }

    /// The worker that serves a request of a replica.
    fn worker(&self, trace: &Trace, request: u64, session: Session, replica: u32) -> u32 {
        let replica = u64::from(replica);
        let key = match session {
            Session::Id(id) if !self.by_request => 2 * (id + replica * trace.stride),
            // Sessions are even, requests by themselves odd.
            _ => 2 * (request + replica * trace.requests.len() as u64) + 1,
        };
        (mix(key ^ mix(self.seed)) % u64::from(self.workers)) as u32
    }
}

/// Makes the stream; what is in it, and the time of its last record in ns.
///
/// # Errors
/// Those of the sink.
pub fn make(
    trace: &Trace,
    making: &Making,
    sink: impl Write + Seek,
) -> Result<(Shape, Totals, u64), StreamError> {
    let mut fleet = Fleet {
        trace,
        making: *making,
        engines: (0..making.workers)
            .map(|_| Engine::new(making.capacity as usize))
            .collect(),
        sink: StreamSink::new(sink, making.shape())?,
        waiting: BinaryHeap::new(),
        events: 0,
        prompt: Prompt::default(),
    };
    for arrival in Arrivals::new(trace, making.replicas, making.span_ms) {
        fleet.write_until(arrival.time_ns)?;
        fleet.serve(&arrival)?;
    }
    fleet.write_until(u64::MAX)?;
    let (totals, span_ns) = fleet.sink.finish()?;
    Ok((making.shape(), totals, span_ns))
}

struct Fleet<'a, W> {
    trace: &'a Trace,
    making: Making,
    engines: Vec<Engine>,
    sink: StreamSink<W>,
    waiting: BinaryHeap<Reverse<Event>>,
    events: u64,
    prompt: Prompt,
}

impl<W: Write + Seek> Fleet<'_, W> {
    /// Writes the events that are due before `time_ns`, or then.
    fn write_until(&mut self, time_ns: u64) -> Result<(), StreamError> {
        let due = |next: &Reverse<Event>| next.0.time_ns <= time_ns;
        while self.waiting.peek().is_some_and(due) {
            let Some(Reverse(event)) = self.waiting.pop() else {
                break;
            };
            let mut put = |op| {
                self.sink.record(Record {
                    time_ns: event.time_ns,
                    worker: event.worker,
                    op,
                })
            };
            if !event.removed.is_empty() {
                put(Op::Remove(&event.removed))?;
            }
            if !event.stored.is_empty() {
                put(Op::Store {
                    parent: event.parent,
                    chunks: &event.stored,
                })?;
            }
        }
        Ok(())
    }

    fn serve(&mut self, arrival: &Arrival) -> Result<(), StreamError> {
        let request = &self.trace.requests[arrival.request];
        let offset = u64::from(arrival.replica) * self.trace.stride;
        let place = arrival.request as u64;
        let worker = self
            .making
            .worker(self.trace, place, request.session, arrival.replica);
        self.prompt.fill(request, offset, self.making.block_tokens);
        if !self.prompt.chunks.is_empty() {
            self.sink.record(Record {
                time_ns: arrival.time_ns,
                worker,
                op: Op::Query(&self.prompt.chunks),
            })?;
        }
        let number = self.events;
        self.events += 1;
        let block_tokens = self.making.block_tokens;
        let engine = &mut self.engines[worker as usize];
        let event = engine.serve(&self.prompt, block_tokens, arrival.time_ns);
        self.waiting.push(Reverse(Event {
            number,
            worker,
            ..event
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvatlas_baselines::stream::OpStream;
    use kvatlas_hashing::sequence_step;
    use std::collections::{HashMap, HashSet};
    use std::io::Cursor;

    const SMALL: Making = Making {
        workers: 1,
        block_tokens: 256,
        replicas: 1,
        capacity: 4,
        seed: 1,
        without_hubs: false,
        by_request: false,
        span_ms: None,
    };

    fn bytes(trace: &str, making: &Making) -> Vec<u8> {
        let trace = Trace::read(trace.as_bytes(), 0.7, making.without_hubs).unwrap();
        let mut file = Cursor::new(Vec::new());
        make(&trace, making, &mut file).unwrap();
        file.into_inner()
    }

    fn stream(trace: &str, making: &Making) -> OpStream {
        OpStream::read(&bytes(trace, making)[..]).unwrap()
    }

    fn request(timestamp: u64, tokens: usize, ids: &[u64]) -> String {
        format!(
            "{{\"timestamp\": {timestamp}, \"input_length\": {tokens}, \"hash_ids\": {ids:?}}}\n"
        )
    }

    /// Id 0 is in all three prompts, id 1 in two of one session.
    fn three() -> String {
        request(0, 1024, &[0, 1]) + &request(0, 1000, &[0, 2]) + &request(1000, 1024, &[0, 1])
    }

    /// The records of `three`, worked out by hand: time in µs, and the words of each record.
    #[test]
    fn a_small_case_comes_out_as_by_hand() {
        let chunk = |id: u64, block: u64| mix(id * 2 + block);
        let (hub_a, hub_b) = (chunk(0, 0), chunk(0, 1));
        let (one_a, one_b, two_a) = (chunk(1, 0), chunk(1, 1), chunk(2, 0));
        let head = sequence_step(hub_a, hub_b);
        let head_one = sequence_step(head, one_a);
        let all_of_one = [hub_a, hub_b, one_a, one_b];
        let all_of_two = [hub_a, hub_b, two_a];
        let gone_first = [sequence_step(head_one, one_b)];
        let gone_then = [sequence_step(head, two_a)];
        let (tail_of_one, tail_of_two) = ([one_b], [two_a]);
        let stored = |parent, chunks| Op::Store { parent, chunks };
        let expected = [
            (0, Op::Query(&all_of_one)),
            // 1 ms and 1,024 tokens later.
            (11_240, stored(None, &all_of_one)),
            // Half a step later; the last id stands for 488 tokens, of which one block is full.
            (500_000, Op::Query(&all_of_two)),
            // The tail of what was used longest ago makes room.
            (505_880, Op::Remove(&gone_first)),
            (505_880, stored(Some(head), &tail_of_two)),
            (1_000_000, Op::Query(&all_of_one)),
            (1_003_560, Op::Remove(&gone_then)),
            (1_003_560, stored(Some(head_one), &tail_of_one)),
        ];
        let stream = stream(&three(), &SMALL);
        let records: Vec<_> = stream
            .records()
            .map(|record| (record.time_ns, record.op))
            .collect();
        assert_eq!(records, expected.map(|(us, op)| (us * 1000, op)));
        assert_eq!(mix(0), 0, "so a first block may have the hash 0");
    }

    #[test]
    fn a_worker_serves_one_prompt_at_a_time() {
        let squeezed = Making {
            span_ms: Some(10),
            ..SMALL
        };
        let trace = request(7, 1024, &[0, 1]) + &request(7, 1000, &[0, 2]);
        let stream = stream(&trace, &squeezed);
        let us: Vec<u64> = stream.records().map(|r| r.time_ns / 1000).collect();
        // The second comes after 5 ms, waits until 11.24, and has 488 tokens missing.
        assert_eq!(us, [0, 5_000, 11_240, 17_120, 17_120]);
    }

    #[test]
    fn without_hubs_no_prompt_begins_with_one() {
        let bare = Making {
            without_hubs: true,
            ..SMALL
        };
        let stream = stream(&three(), &bare);
        let first = stream.records().next().unwrap();
        assert_eq!(first.op, Op::Query(&[mix(2), mix(3)]));
        assert_eq!(stream.shape().flags, FLAG_NO_HUB);
    }

    #[test]
    fn a_parent_whose_hash_cannot_be_named_is_stored_again() {
        let trace = request(0, 256, &[0]) + &request(9, 512, &[0]);
        let stream = stream(&trace, &SMALL);
        let stores: Vec<_> = stream.records().filter(|r| r.op.kind() == 1).collect();
        let whole = Op::Store {
            parent: None,
            chunks: &[mix(0), mix(1)],
        };
        assert_eq!((stores.len(), stores[1].op), (2, whole));
    }

    /// Sessions that grow, under a hub.
    fn sessions() -> String {
        let mut lines = String::new();
        let mut grown: HashMap<u64, Vec<u64>> = HashMap::new();
        for number in 0..400u64 {
            let session = mix(number + 1) % 40;
            let ids = grown.entry(session).or_insert_with(|| vec![0]);
            ids.extend([1000 + number * 2, 1001 + number * 2]);
            lines += &request(number / 7 * 3000, ids.len() * 512 - 100, ids);
        }
        lines
    }

    const FLEET: Making = Making {
        workers: 6,
        block_tokens: 128,
        replicas: 3,
        capacity: 300,
        ..SMALL
    };

    #[test]
    fn a_worker_never_holds_more_than_fits_nor_a_block_without_its_parent() {
        let stream = stream(&sessions(), &FLEET);
        let mut held: Vec<HashMap<u64, Option<u64>>> = vec![HashMap::new(); 6];
        for record in stream.records() {
            let held = &mut held[record.worker as usize];
            match record.op {
                Op::Query(_) => {}
                Op::Store { mut parent, chunks } => {
                    for &chunk in chunks {
                        assert!(parent.is_none_or(|parent| held.contains_key(&parent)));
                        let hash = parent.map_or(chunk, |parent| sequence_step(parent, chunk));
                        assert!(held.insert(hash, parent).is_none());
                        parent = Some(hash);
                    }
                    assert!(held.len() <= 300);
                }
                Op::Remove(hashes) => {
                    for hash in hashes {
                        assert!(held.remove(hash).is_some());
                        assert!(held.values().all(|&parent| parent != Some(*hash)));
                    }
                }
            }
        }
        assert!(stream.totals().blocks[2] > 0, "something was evicted");
    }

    #[test]
    fn a_session_stays_on_one_worker_and_replicas_share_nothing() {
        let by_request = Making {
            by_request: true,
            ..FLEET
        };
        // In each replica the prompts have 40 second ids: those of the sessions.
        let homes = |making: &Making| {
            let stream = stream(&sessions(), making);
            let mut homes: HashMap<u64, HashSet<u32>> = HashMap::new();
            for record in stream.records() {
                if let Op::Query(chunks) = record.op {
                    homes.entry(chunks[4]).or_default().insert(record.worker);
                }
            }
            homes
        };
        let by_session = homes(&FLEET);
        assert_eq!(by_session.len(), 3 * 40);
        assert!(by_session.values().all(|workers| workers.len() == 1));
        let used: HashSet<u32> = by_session.into_values().flatten().collect();
        assert_eq!(used.len(), 6);
        assert!(homes(&by_request).values().any(|workers| workers.len() > 1));
    }

    #[test]
    fn a_seed_makes_one_stream() {
        let other = Making { seed: 2, ..FLEET };
        let first = bytes(&sessions(), &FLEET);
        assert_eq!(first, bytes(&sessions(), &FLEET));
        assert_ne!(first, bytes(&sessions(), &other));
    }
}
