//! Between the data plane and the event loop: reads the prompt of a request that has arrived, before it is handed on.
//!
//! ```text
//!  Arrived ─┬─ short body ──▶ read here ──────────────┬─▶ no matches wanted ─▶ queue
//!           └─ long body ───▶ read on another thread ─┴─▶ FindMatches ───────▶ queue
//! ```
//!
//! All of it happens on the proxy's runtime, so a request reaches Python once, with everything that a decision needs.
//! Bounds: a short body takes at most [`STEPS_HERE`] steps of a template here; long ones share a few threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvatlas_client::{FindError, Finder, Found, Query};
use kvatlas_prompts::{Budget, Left, Route};
use kvatlas_proxy::exchange::{Ending, Event, EventSink, Exchange};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::event_queue::EventQueue;
use crate::prompts::{Read, Reader, route};

/// Reading so long a body takes less than a millisecond, which streams can wait.
const BYTES_HERE_MAX: usize = 64 * 1024;
/// A template of a family of models takes a few hundred steps for each message.
const STEPS_HERE: Budget = Budget(50_000);

/// An event on its way to Python.
pub enum Queued {
    /// A request has arrived.
    Arrived(Box<Arrival>),
    /// Any other event.
    Event(Event),
}

/// A request that has arrived, with what was read of it.
pub struct Arrival {
    /// The request, and the way to answer it.
    pub exchange: Arc<Exchange>,
    /// None: it has no prompt, or nothing reads prompts here.
    pub prompt: Option<Result<Read, Left>>,
    /// None: nothing was asked.
    pub found: Option<Result<Found, FindError>>,
    /// How long that took.
    pub find: Duration,
    /// When the body's last byte had been read.
    pub complete: Instant,
}

/// How the indexers are asked for a prompt's matches.
pub struct Asks {
    pub finder: Arc<Finder>,
    pub limit: u32,
    pub deadline: Duration,
    /// Off while the indexers do not answer: the router decides when to try again.
    pub is_on: Arc<AtomicBool>,
}

impl Arrival {
    /// A request of which nothing has been read yet.
    pub fn unread(exchange: Arc<Exchange>) -> Self {
        Self {
            exchange,
            prompt: None,
            found: None,
            find: Duration::ZERO,
            complete: Instant::now(),
        }
    }
}

/// Takes the proxy's events.
pub struct Arrivals(Arc<Shared>);

struct Shared {
    queue: Arc<EventQueue<Queued>>,
    reader: Option<Arc<Reader>>,
    asks: Option<Asks>,
    /// Requests that are being read; an ending that comes meanwhile waits here.
    reading: Mutex<HashMap<u64, Option<Ending>>>,
    threads: Semaphore,
}

impl Arrivals {
    pub fn new(
        queue: Arc<EventQueue<Queued>>,
        reader: Option<Arc<Reader>>,
        asks: Option<Asks>,
    ) -> Self {
        let threads = reader.as_ref().map_or(0, |reader| reader.threads());
        Self(Arc::new(Shared {
            queue,
            reader,
            asks,
            reading: Mutex::default(),
            threads: Semaphore::new(threads),
        }))
    }
}

impl EventSink for Arrivals {
    fn push(&self, event: Event) {
        match event {
            Event::Arrived(exchange) => arrived(&self.0, exchange),
            Event::Ended { id, ending } => {
                if let Some(waiting) = self.0.reading().get_mut(&id) {
                    *waiting = Some(ending);
                    return;
                }
                self.0
                    .queue
                    .push(Queued::Event(Event::Ended { id, ending }));
            }
            event => self.0.queue.push(Queued::Event(event)),
        }
    }
}

fn arrived(shared: &Arc<Shared>, exchange: Arc<Exchange>) {
    let mut arrival = Arrival::unread(exchange);
    let exchange = Arc::clone(&arrival.exchange);
    let request = &exchange.request;
    let (Some(reader), Some(route), true) = (
        &shared.reader,
        route(&request.path),
        request.method == http::Method::POST,
    ) else {
        return shared.queue.push(Queued::Arrived(Box::new(arrival)));
    };
    let mut is_read = false;
    if request.body.len() <= BYTES_HERE_MAX {
        let tenant = reader.tenant(&request.headers);
        match reader.read(route, &request.body, tenant, STEPS_HERE) {
            Err(Left::TooLong) => {}
            read => {
                arrival.prompt = Some(read);
                is_read = true;
            }
        }
    }
    let (Ok(runtime), false) = (
        Handle::try_current(),
        is_read && shared.query(&arrival).is_none(),
    ) else {
        return shared.queue.push(Queued::Arrived(Box::new(arrival)));
    };
    let reader = Arc::clone(reader);
    let mut reading = Reading::begin(shared, arrival);
    runtime.spawn(async move {
        if !is_read {
            reading.on_a_thread(reader, route).await;
        }
        reading.ask().await;
    });
}

/// A request that is being read. However its task ends, the request is handed on, and its ending after it.
struct Reading {
    shared: Arc<Shared>,
    arrival: Option<Arrival>,
}

impl Reading {
    fn begin(shared: &Arc<Shared>, arrival: Arrival) -> Self {
        shared.reading().insert(arrival.exchange.id, None);
        Self {
            shared: Arc::clone(shared),
            arrival: Some(arrival),
        }
    }

    async fn on_a_thread(&mut self, reader: Arc<Reader>, route: Route) {
        let Some(exchange) = self.exchange() else {
            return;
        };
        let Ok(_turn) = self.shared.threads.acquire().await else {
            return;
        };
        if self.has_ended(exchange.id) {
            return;
        }
        let read = tokio::task::spawn_blocking(move || {
            let request = &exchange.request;
            let tenant = reader.tenant(&request.headers);
            reader.read(route, &request.body, tenant, Budget(u64::MAX))
        });
        let read = read.await.ok();
        if let Some(arrival) = &mut self.arrival {
            arrival.prompt = read;
        }
    }

    async fn ask(&mut self) {
        let Some(arrival) = &mut self.arrival else {
            return;
        };
        let Some((asks, query)) = self.shared.query(arrival) else {
            return;
        };
        let began = Instant::now();
        let found = asks.finder.find_matches(&query, asks.deadline).await;
        arrival.found = Some(found);
        arrival.find = began.elapsed();
    }

    fn exchange(&self) -> Option<Arc<Exchange>> {
        let arrival = self.arrival.as_ref()?;
        Some(Arc::clone(&arrival.exchange))
    }

    fn has_ended(&self, id: u64) -> bool {
        matches!(self.shared.reading().get(&id), Some(Some(_)))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let Some(arrival) = self.arrival.take() else {
            return;
        };
        let id = arrival.exchange.id;
        let ending = self.shared.reading().remove(&id).flatten();
        self.shared.queue.push(Queued::Arrived(Box::new(arrival)));
        if let Some(ending) = ending {
            self.shared
                .queue
                .push(Queued::Event(Event::Ended { id, ending }));
        }
    }
}

impl Shared {
    /// The query for a prompt's matches; None: there is nothing to ask, or nobody.
    fn query<'a>(&'a self, arrival: &'a Arrival) -> Option<(&'a Asks, Query<'a>)> {
        let asks = self.asks.as_ref()?;
        let read = arrival.prompt.as_ref()?.as_ref().ok()?;
        let hashes = read.chunk_hashes.as_deref()?;
        if hashes.is_empty() || !asks.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let query = Query {
            hashes,
            chunks: true,
            limit: asks.limit,
            exact: false,
        };
        Some((asks, query))
    }

    fn reading(&self) -> MutexGuard<'_, HashMap<u64, Option<Ending>>> {
        // No panic can leave the table half changed.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
