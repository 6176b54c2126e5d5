//! The channel against a real tonic server, a server that goes away and comes back, and peers that
//! are no gRPC servers.

mod server;

use std::time::{Duration, Instant};

use kvatlas_client::{Channel, Code, FindMatchesResponse, Query, Status};
use server::Running;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Long enough that a test which meets it has failed.
const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);

fn channel_to(server: &Running) -> Channel {
    Channel::new(&server.address.to_string()).unwrap()
}

fn query<'a>(model: &'a str, hashes: &'a [u64]) -> Query<'a> {
    Query {
        model,
        block_size: 16,
        hash_contract: "c",
        hashes,
        chunks: true,
        limit: 3,
        exact: false,
    }
}

fn code(outcome: Result<FindMatchesResponse, Status>) -> Code {
    outcome.expect_err("an error was expected").code()
}

/// Asks until the outcome is as wanted: the connection is made in the background.
fn until(channel: &Channel, wanted: impl Fn(&Result<FindMatchesResponse, Status>) -> bool) {
    let begin = Instant::now();
    loop {
        let outcome = channel.find_matches(&query("", &[1]), PATIENCE);
        if wanted(&outcome) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "still {outcome:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_query_arrives_whole_and_its_answer_too() {
    let server = Running::start();
    let channel = channel_to(&server);
    for count in [0, 1, 2, 500, 100_000] {
        let hashes: Vec<u64> = (0..count).map(|i| u64::MAX - i).collect();
        let matches = channel.find_matches(&query("", &hashes), PATIENCE).unwrap();
        assert_eq!(matches.worker_ids, hashes);
        assert_eq!(matches.dp_ranks, vec![3; hashes.len()]);
        assert_eq!(matches.depths, vec![16; hashes.len()]);
    }
    let wide = channel.find_matches(&query("wide", &[]), PATIENCE).unwrap();
    assert_eq!(wide.worker_ids.len(), 1_000_000);
}

#[test]
fn many_threads_share_one_connection() {
    let server = Running::start();
    let channel = channel_to(&server);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let channel = &channel;
            scope.spawn(move || {
                for call in 0..50 {
                    let hashes = [thread, call];
                    let matches = channel.find_matches(&query("", &hashes), PATIENCE).unwrap();
                    assert_eq!(matches.worker_ids, hashes);
                }
            });
        }
    });
}

#[test]
fn a_spawned_call_ends_once() {
    let server = Running::start();
    let channel = channel_to(&server);
    let (sender, outcomes) = std::sync::mpsc::channel();
    for model in ["", "mismatch"] {
        let sender = sender.clone();
        let done = move |outcome| sender.send((model, outcome)).unwrap();
        channel
            .find_matches_soon(&query(model, &[5]), PATIENCE, done)
            .unwrap();
    }
    drop(sender);
    let outcomes: Vec<_> = outcomes.iter().collect();
    assert_eq!(outcomes.len(), 2);
    for (model, outcome) in outcomes {
        assert_eq!(outcome.is_ok(), model.is_empty());
    }
}

#[test]
fn a_servers_status_is_handed_on_in_words() {
    let server = Running::start();
    let channel = channel_to(&server);
    let error = channel
        .find_matches(&query("mismatch", &[]), PATIENCE)
        .unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::FailedPrecondition, "another módel")
    );
    let outcome = channel.find_matches(&query("unavailable", &[]), PATIENCE);
    assert_eq!(code(outcome), Code::Unavailable);
}

#[test]
fn a_server_that_hangs_costs_the_deadline_and_no_other_call() {
    let server = Running::start();
    let channel = channel_to(&server);
    until(&channel, Result::is_ok);
    let begin = Instant::now();
    let outcome = channel.find_matches(&query("hang", &[]), SHORT);
    assert_eq!(code(outcome), Code::DeadlineExceeded);
    assert!(begin.elapsed() >= SHORT);
    assert!(channel.find_matches(&query("", &[1]), PATIENCE).is_ok());
}

#[test]
fn nobody_listening_fails_without_waiting_for_the_deadline() {
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let channel = Channel::new(&address.to_string()).unwrap();
    let outcome = channel.find_matches(&query("", &[]), Duration::MAX);
    assert_eq!(code(outcome), Code::Unavailable);
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    let server = Running::start();
    let address = server.address;
    let channel = channel_to(&server);
    until(&channel, Result::is_ok);
    drop(server);
    until(
        &channel,
        |outcome| matches!(outcome, Err(e) if e.code() == Code::Unavailable),
    );
    let _server = Running::start_at(address);
    until(&channel, Result::is_ok);
}

#[test]
fn a_peer_that_never_speaks_costs_the_deadline() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let channel = Channel::new(&listener.local_addr().unwrap().to_string()).unwrap();
    let outcome = channel.find_matches(&query("", &[]), SHORT);
    assert_eq!(code(outcome), Code::DeadlineExceeded);
}

#[test]
fn a_peer_that_speaks_something_else_is_an_error() {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            answer.await.unwrap();
        }
    });
    let channel = Channel::new(&address.to_string()).unwrap();
    let outcome = channel.find_matches(&query("", &[]), PATIENCE);
    assert_eq!(code(outcome), Code::Unavailable);
}

#[test]
fn a_closed_channel_refuses() {
    let server = Running::start();
    let channel = channel_to(&server);
    until(&channel, Result::is_ok);
    channel.close();
    let outcome = channel.find_matches(&query("", &[]), PATIENCE);
    assert_eq!(code(outcome), Code::Cancelled);
    let refused = channel.find_matches_soon(&query("", &[]), PATIENCE, |_| ());
    assert_eq!(refused.unwrap_err().code(), Code::Cancelled);
}

#[test]
fn an_address_is_a_host_and_a_port() {
    for bad in ["", "host", ":80", "http://host:80", "host:80/path", "a b:1"] {
        assert!(Channel::new(bad).is_err(), "{bad}");
    }
    for good in ["host:80", "127.0.0.1:1", "[::1]:50051"] {
        assert!(Channel::new(good).is_ok(), "{good}");
    }
}
