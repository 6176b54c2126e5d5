//! From a trace to an operation stream: a mock engine per worker, all their events on one timeline.
//!
//! Every request of the trace comes once per replica, with ids of its own. It is looked up when it
//! arrives, and served by the worker of its session, one prompt at a time; when the worker is done, 1 ms
//! and 10 µs per missing token after it began, it says what it evicted and then what it stored. Events
//! that are not yet due wait in a heap, so memory holds the caches and the backlog, never the stream.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Seek, Write};

use kvatlas_baselines::opstream::{
    FLAG_BY_REQUEST, FLAG_NO_HUB, Op, Record, Shape, StreamError, StreamSink, Totals,
};
use kvatlas_hashing::sequence_hashes_into;

use crate::index::cache::Cache;
use crate::index::trace::{ID_TOKENS, Request, Session, Trace};

const SERVICE_NS: u64 = 1_000_000;
const TOKEN_NS: u64 = 10_000;

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
    /// Of the choice of workers.
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

/// The output function of splitmix64.
pub fn mix(state: u64) -> u64 {
    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
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
            .map(|_| Engine {
                cache: Cache::new(making.capacity as usize),
                free_ns: 0,
            })
            .collect(),
        sink: StreamSink::new(sink, making.shape())?,
        waiting: BinaryHeap::new(),
        events: 0,
        prompt: Prompt::default(),
    };
    for arrival in Arrivals::new(trace, making) {
        fleet.write_until(arrival.time_ns)?;
        fleet.serve(&arrival)?;
    }
    fleet.write_until(u64::MAX)?;
    let (totals, span_ns) = fleet.sink.finish()?;
    Ok((making.shape(), totals, span_ns))
}

/// One request of one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Arrival {
    time_ns: u64,
    request: usize,
    replica: u32,
}

/// All arrivals in order. Traces have them in steps; those of a step are spread evenly up to the next.
struct Arrivals<'a> {
    requests: &'a [Request],
    replicas: usize,
    /// Nanoseconds of the stream per ms of the trace.
    scale: f64,
    last_step_ms: f64,
    /// The step at hand: its first request, the one behind its last, and how many arrivals it has given.
    step: (usize, usize, usize),
}

impl<'a> Arrivals<'a> {
    fn new(trace: &'a Trace, making: &Making) -> Self {
        let requests = &trace.requests[..];
        let times = || requests.iter().map(|request| request.timestamp_ms);
        let (first, last) = (times().next().unwrap_or(0.0), times().last().unwrap_or(0.0));
        // The last step has no next; it is taken to be as long as the one before, and 1 s if alone.
        let last_step_ms = times()
            .rev()
            .find(|&before| before < last)
            .map_or(1_000.0, |before| last - before);
        let scale = making.span_ms.map_or(1e6, |span_ms| {
            span_ms as f64 * 1e6 / (last + last_step_ms - first)
        });
        Self {
            requests,
            replicas: making.replicas as usize,
            scale,
            last_step_ms,
            step: (0, 0, 0),
        }
    }
}

impl Iterator for Arrivals<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let (mut from, mut to, mut given) = self.step;
        if given == (to - from) * self.replicas {
            let begins = self.requests.get(to)?.timestamp_ms;
            let step = self.requests[to..].iter();
            let len = step.take_while(|r| r.timestamp_ms == begins).count();
            (from, to, given) = (to, to + len, 0);
        }
        let begins = self.requests[from].timestamp_ms;
        let next = self.requests.get(to);
        let lasts = next.map_or(self.last_step_ms, |next| next.timestamp_ms - begins);
        let of = (to - from) * self.replicas;
        let since_first = begins - self.requests[0].timestamp_ms;
        let ms = since_first + lasts * given as f64 / of as f64;
        self.step = (from, to, given + 1);
        Some(Arrival {
            time_ns: (ms * self.scale) as u64,
            request: from + given % (to - from),
            replica: (given / (to - from)) as u32,
        })
    }
}

/// What happens to a prompt's blocks, and where they come from.
#[derive(Default)]
struct Prompt {
    chunks: Vec<u64>,
    hashes: Vec<u64>,
    tokens: u64,
}

impl Prompt {
    fn fill(&mut self, request: &Request, offset: u64, block_tokens: u32) {
        let ratio = u64::from(ID_TOKENS / block_tokens);
        self.chunks.clear();
        self.tokens = 0;
        for &(id, tokens) in &request.ids {
            let first = (id + offset).wrapping_mul(ratio);
            let blocks = u64::from(tokens / block_tokens);
            self.chunks
                .extend((0..blocks).map(|block| mix(first.wrapping_add(block))));
            self.tokens += u64::from(tokens);
        }
        self.hashes.resize(self.chunks.len(), 0);
        sequence_hashes_into(&self.chunks, &mut self.hashes);
    }
}

struct Engine {
    cache: Cache,
    free_ns: u64,
}

/// What an engine will say: the blocks it evicted, then those that it stored.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time_ns: u64,
    /// Keeps those of one time in order.
    number: u64,
    worker: u32,
    removed: Vec<u64>,
    parent: Option<u64>,
    stored: Vec<u64>,
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
        let capacity = self.making.capacity as usize;
        let block_tokens = self.making.block_tokens;
        let engine = &mut self.engines[worker as usize];
        let event = engine.serve(&self.prompt, capacity, block_tokens, arrival.time_ns);
        self.waiting.push(Reverse(Event {
            number,
            worker,
            ..event
        }));
        Ok(())
    }
}

impl Engine {
    /// Serves a prompt that arrives at `now_ns`. Of one that is longer than the cache, the head is kept.
    fn serve(&mut self, prompt: &Prompt, capacity: usize, block_tokens: u32, now_ns: u64) -> Event {
        let kept = prompt.hashes.len().min(capacity);
        let hashes = &prompt.hashes[..kept];
        let held = hashes.iter().take_while(|&&hash| self.cache.contains(hash));
        let held = held.count();
        for &hash in hashes.iter().rev() {
            self.cache.touch(hash);
        }
        let mut removed = Vec::new();
        self.cache.evict(&mut removed);
        let missing = prompt.tokens - held as u64 * u64::from(block_tokens);
        self.free_ns = now_ns.max(self.free_ns) + SERVICE_NS + TOKEN_NS * missing;
        // A parent whose hash is 0 cannot be told from none; a store that would need it begins with it.
        let named = |at: &usize| *at == 0 || hashes[at - 1] != 0;
        let from = if held == kept {
            kept
        } else {
            (0..=held).rev().find(named).unwrap_or(0)
        };
        Event {
            time_ns: self.free_ns,
            number: 0,
            worker: 0,
            removed,
            parent: from.checked_sub(1).map(|at| hashes[at]),
            stored: prompt.chunks[from..kept].to_vec(),
        }
    }
}
