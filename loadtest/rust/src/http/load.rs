//! Patterns of load on one address, and what they measure.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::connection::{Connection, Counted};
use super::requests::Requests;
use crate::latency::Latencies;

/// The measurements of a load.
#[derive(Default)]
pub struct Measured {
    /// From sending a request to its answer's first event.
    pub first_event: Latencies,
    /// From sending a request to its answer's end.
    pub last_byte: Latencies,
    /// The same as `first_event`, straight to an engine.
    pub direct: Latencies,
    /// Events of all answers.
    pub events: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// The values of a header of the answers.
    pub header: BTreeMap<String, u64>,
}

/// State that all connections of a load share.
struct Shared {
    target: String,
    requests: RefCell<Requests>,
    measured: RefCell<Measured>,
    header: RefCell<Counted>,
}

impl Shared {
    fn new(target: &str, requests: Requests, header: Counted) -> Rc<Self> {
        Rc::new(Self {
            target: target.to_owned(),
            requests: RefCell::new(requests),
            measured: RefCell::default(),
            header: RefCell::new(header),
        })
    }

    /// Sends the next request, which was due at `due`, and counts its answer. False: it failed.
    async fn send(&self, connection: &mut Connection, due: Option<Instant>) -> bool {
        self.requests.borrow_mut().write_next(connection.request());
        let due = due.unwrap_or_else(Instant::now);
        let mut header = Counted::clone(&self.header.borrow());
        header.values.clear();
        let answer = connection.send(&mut header).await;
        let measured = &mut *self.measured.borrow_mut();
        match answer {
            Ok(answer) => {
                measured.first_event.add(answer.first_event - due);
                measured.last_byte.add(answer.end - due);
                measured.events += answer.events;
                for (value, count) in header.values {
                    *measured.header.entry(value).or_default() += count;
                }
                true
            }
            Err(problem) => {
                self.fail(measured, problem);
                false
            }
        }
    }

    fn fail(&self, measured: &mut Measured, problem: String) {
        measured.errors += 1;
        measured.first_error.get_or_insert(problem);
    }

    async fn open(&self) -> Option<Connection> {
        match Connection::open(&self.target).await {
            Ok(connection) => Some(connection),
            Err(problem) => {
                self.fail(&mut self.measured.borrow_mut(), problem);
                None
            }
        }
    }

    fn finish(self: Rc<Self>, began: Instant) -> Measured {
        let mut measured = std::mem::take(&mut *self.measured.borrow_mut());
        measured.seconds = began.elapsed().as_secs_f64();
        measured
    }
}

/// The target, the requests and the header to count.
pub struct Load {
    /// Address of the router, or of an engine.
    pub target: String,
    /// The requests to send.
    pub requests: Requests,
    /// A header of the answers whose values are counted.
    pub header: Counted,
}

impl Load {
    /// Closed loop: each connection sends its next request when its last one is answered, and `pause` has
    /// passed since that one was sent.
    pub async fn closed(self, connections: usize, lasts: Duration, pause: Duration) -> Measured {
        let shared = Shared::new(&self.target, self.requests, self.header);
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            let shared = Rc::clone(&shared);
            tasks.spawn_local(async move {
                let Some(mut connection) = shared.open().await else {
                    return;
                };
                while began.elapsed() < lasts {
                    let sent = tokio::time::Instant::now();
                    if !shared.send(&mut connection, None).await {
                        return;
                    }
                    if !pause.is_zero() {
                        tokio::time::sleep_until(sent + pause).await;
                    }
                }
            });
        }
        tasks.join_all().await;
        shared.finish(began)
    }

    /// Open loop: requests are due at random times, `rate` a second on average, whether or not earlier ones
    /// are answered. Times count from when a request was due. Idle connections are used again; where
    /// `connections` are busy, requests wait for one, so that a delay does not grow by opening more.
    pub async fn open(self, rate: f64, lasts: Duration, connections: usize, seed: u64) -> Measured {
        let shared = Shared::new(&self.target, self.requests, self.header);
        let idle: Rc<RefCell<Vec<Connection>>> = Rc::default();
        let free = Rc::new(Semaphore::new(connections));
        let began = Instant::now();
        let (send, mut receive) = mpsc::unbounded_channel();
        // Tokio's timers count milliseconds, and a thread's sleep is precise to 50 µs.
        let pacer = std::thread::spawn(move || pace(began, rate, lasts, seed, &send));
        let mut tasks = JoinSet::new();
        while let Some(due) = receive.recv().await {
            let (shared, idle, free) = (Rc::clone(&shared), Rc::clone(&idle), Rc::clone(&free));
            while tasks.try_join_next().is_some() {}
            tasks.spawn_local(async move {
                let _permit = free.acquire().await;
                let waiting = idle.borrow_mut().pop();
                let opened = match waiting {
                    Some(connection) => Some(connection),
                    None => shared.open().await,
                };
                let Some(mut connection) = opened else {
                    return;
                };
                if shared.send(&mut connection, Some(due)).await {
                    idle.borrow_mut().push(connection);
                }
            });
        }
        tasks.join_all().await;
        pacer.join().expect("the pacer does not panic");
        shared.finish(began)
    }

    /// One connection, `rounds` times: a request to the target, then the next one straight to an engine.
    ///
    /// # Errors
    /// If a request fails.
    pub async fn in_turns(
        mut self,
        engines: &[&str],
        rounds: usize,
        warm_up: usize,
    ) -> Result<Measured, String> {
        let mut routed = Connection::open(&self.target).await?;
        let mut direct = Vec::new();
        for engine in engines {
            direct.push(Connection::open(engine).await?);
        }
        let mut measured = Measured::default();
        let mut ignored = Counted::default();
        let began = Instant::now();
        for round in 0..warm_up + rounds {
            self.requests.write_next(routed.request());
            let sent = Instant::now();
            let through = routed.send(&mut self.header).await?;
            let through_took = through.first_event - sent;
            let engine = &mut direct[round % engines.len()];
            self.requests.write_next(engine.request());
            let sent = Instant::now();
            let straight_took = engine.send(&mut ignored).await?.first_event - sent;
            if round >= warm_up {
                measured.first_event.add(through_took);
                measured.direct.add(straight_took);
                measured.events += through.events;
            }
        }
        measured.header = self.header.values;
        measured.seconds = began.elapsed().as_secs_f64();
        Ok(measured)
    }

    /// All streams at once, each on a connection of its own. The connections are opened beforehand, one after
    /// another: otherwise the times would be those of a full queue of unaccepted connections.
    pub async fn burst(self, streams: usize) -> Measured {
        let shared = Shared::new(&self.target, self.requests, self.header);
        let mut connections = Vec::new();
        for _ in 0..streams {
            connections.extend(shared.open().await);
        }
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for mut connection in connections {
            let shared = Rc::clone(&shared);
            tasks.spawn_local(async move { shared.send(&mut connection, Some(began)).await });
        }
        tasks.join_all().await;
        shared.finish(began)
    }
}

/// Sends the times at which requests are due, when they are; exponential gaps.
fn pace(
    began: Instant,
    rate: f64,
    lasts: Duration,
    mut seed: u64,
    send: &mpsc::UnboundedSender<Instant>,
) {
    let mut due_s = 0.0;
    loop {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = ((seed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        due_s -= uniform.ln() / rate;
        if due_s >= lasts.as_secs_f64() {
            return;
        }
        let due = began + Duration::from_secs_f64(due_s);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if send.send(due).is_err() {
            return;
        }
    }
}
