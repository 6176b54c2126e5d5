//! The data plane alone: takes the engines in turn and decides nothing, to measure what the bytes cost.
//!
//! `cargo run --release -p kvatlas-proxy --example bare -- PORT HOST:PORT …`

use std::process::ExitCode;
use std::sync::Arc;

use kvatlas_proxy::exchange::{Answer, EngineAddress, Event, EventSink, Forward, Step};
use kvatlas_proxy::{EngineTls, Limits, Server};

struct Turns {
    engines: Vec<EngineAddress>,
    next: parking_lot::Mutex<usize>,
}

impl EventSink for Turns {
    fn push(&self, event: Event) {
        // An attempt that fails waits for another step; here it ends with its connection.
        let Event::Arrived(exchange) = event else {
            assert!(!matches!(event, Event::Failed { .. }), "an engine failed");
            return;
        };
        let mut next = self.next.lock();
        *next = (*next + 1) % self.engines.len();
        let target = exchange.request.path.clone();
        exchange.proceed(if target == "/health" {
            Step::Answer(Answer {
                status: http::StatusCode::OK,
                headers: Vec::new(),
                body: bytes::Bytes::new(),
            })
        } else {
            Step::Forward(Forward {
                engine: self.engines[*next].clone(),
                target,
                request_headers: Vec::new(),
                answer_headers: Vec::new(),
                begin_bytes: 0,
            })
        });
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let port = words.next().and_then(|word| word.parse().ok());
    let engines: Vec<EngineAddress> = words
        .filter_map(|word| {
            let (host, port) = word.rsplit_once(':')?;
            Some(EngineAddress {
                host: host.to_owned(),
                port: port.parse().ok()?,
                is_tls: false,
            })
        })
        .collect();
    let Some(port) = port.filter(|_| !engines.is_empty()) else {
        eprintln!("usage: bare PORT HOST:PORT …");
        return ExitCode::from(2);
    };
    let next = parking_lot::Mutex::new(0);
    let sink = Arc::new(Turns { engines, next });
    let tls = EngineTls::new(None, None).expect("the system's CAs need no file");
    match Server::start("127.0.0.1", port, Limits::default(), tls, sink) {
        Ok(server) => loop {
            println!("{}", server.address());
            std::thread::park(); // until it is killed
        },
        Err(error) => {
            eprintln!("bare: {error}");
            ExitCode::FAILURE
        }
    }
}
