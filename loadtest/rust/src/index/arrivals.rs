//! The arrivals of requests: a trace's steps spread evenly, with all replicas side by side.

use crate::index::trace::{Request, Trace};

/// One request of one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// ns from the first one.
    pub time_ns: u64,
    /// Its place in the trace.
    pub request: usize,
    /// From 0.
    pub replica: u32,
}

/// All arrivals in order. Traces have them in steps; those of a step are spread evenly up to the next.
pub struct Arrivals<'a> {
    requests: &'a [Request],
    replicas: usize,
    /// Nanoseconds of the stream per ms of the trace.
    scale: f64,
    last_step_ms: f64,
    /// The step at hand: its first request, the one behind its last, and how many arrivals it has given.
    step: (usize, usize, usize),
}

impl<'a> Arrivals<'a> {
    /// Those of a trace that comes `replicas` times side by side, in its own time or within `span_ms`.
    pub fn new(trace: &'a Trace, replicas: u32, span_ms: Option<u64>) -> Self {
        let requests = &trace.requests[..];
        let times = || requests.iter().map(|request| request.timestamp_ms);
        let (first, last) = (
            times().next().unwrap_or(0.0),
            times().next_back().unwrap_or(0.0),
        );
        // The last step has no next; it is taken to be as long as the one before, and 1 s if alone.
        let last_step_ms = times()
            .rev()
            .find(|&before| before < last)
            .map_or(1_000.0, |before| last - before);
        let scale = span_ms.map_or(1e6, |span_ms| {
            span_ms as f64 * 1e6 / (last + last_step_ms - first)
        });
        Self {
            requests,
            replicas: replicas as usize,
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
