//! The finder against real tonic servers, servers that go away and come back, and peers that are no
//! gRPC servers.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::server::{Running, Script};
use bytes::Bytes;
use kvatlas_client::{CellTerms, Code, FindError, Finder, Found, Query};
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Runtime};

/// Long enough that a test which meets it has failed.
const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);
const UNAVAILABLE: Script = Script::Fail(Code::Unavailable, "not ready");

fn terms() -> CellTerms {
    CellTerms {
        model: "m".into(),
        block_size: 16,
        hash_contract: "c".into(),
    }
}

fn finder_at(addresses: &[String]) -> Arc<Finder> {
    Arc::new(Finder::new(addresses, terms(), 1).unwrap())
}

fn finder_of(servers: &[&Running]) -> Arc<Finder> {
    let addresses = servers.iter().map(|server| server.address.to_string());
    finder_at(&addresses.collect::<Vec<_>>())
}

fn query(hashes: &[u64]) -> Query<'_> {
    Query {
        hashes,
        chunks: true,
        limit: 3,
        exact: false,
    }
}

fn ask(finder: &Finder) -> Result<Found, FindError> {
    finder.find_matches_blocking(&query(&[1]), PATIENCE)
}

fn codes(outcome: &Result<Found, FindError>) -> Vec<Code> {
    let error = outcome.as_ref().expect_err("an error was expected");
    error.failures().iter().map(|each| each.code).collect()
}

/// The replicas that answer a few queries.
fn answering(finder: &Finder) -> HashSet<String> {
    (0..4)
        .map(|_| ask(finder).unwrap().replica.to_string())
        .collect()
}

/// Asks until the outcome is as wanted: connections are made in the background.
fn until(finder: &Finder, wanted: impl Fn(&Result<Found, FindError>) -> bool) {
    let begin = Instant::now();
    loop {
        let outcome = ask(finder);
        if wanted(&outcome) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "still {outcome:?}");
        std::thread::yield_now();
    }
}

/// An address on which nobody listens.
fn nobody() -> String {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    taken.local_addr().unwrap().to_string()
}

#[test]
fn a_query_arrives_whole_and_its_answer_too() {
    let server = Running::start();
    let finder = finder_of(&[&server]);
    for count in [0, 1, 2, 500, 100_000] {
        let hashes: Vec<u64> = (0..count).map(|i| u64::MAX - i).collect();
        let found = finder
            .find_matches_blocking(&query(&hashes), PATIENCE)
            .unwrap();
        assert_eq!(*found.replica, server.address.to_string());
        assert_eq!(found.response.worker_ids, hashes);
        assert_eq!(found.response.dp_ranks, vec![3; hashes.len()]);
        assert_eq!(found.response.depths, vec![16; hashes.len()]);
    }
    server.script(Script::Wide);
    let wide = ask(&finder).unwrap();
    assert_eq!(wide.response.worker_ids.len(), 1_000_000);
}

#[test]
fn many_threads_share_the_connections() {
    let servers = [Running::start(), Running::start()];
    let finder = finder_of(&[&servers[0], &servers[1]]);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let finder = &finder;
            scope.spawn(move || {
                for call in 0..50 {
                    let hashes = [thread, call];
                    let found = finder.find_matches_blocking(&query(&hashes), PATIENCE);
                    assert_eq!(found.unwrap().response.worker_ids, hashes);
                }
            });
        }
    });
    assert_eq!(servers.each_ref().map(Running::queries), [200, 200]);
}

#[test]
fn a_background_call_ends_once() {
    let servers = [Running::start(), Running::start()];
    servers[0].script(UNAVAILABLE);
    let finder = finder_of(&[&servers[0], &servers[1]]);
    let (sender, outcomes) = std::sync::mpsc::channel();
    for _ in 0..2 {
        let sender = sender.clone();
        let done = move |outcome| sender.send(outcome).unwrap();
        finder.find_matches_soon(&query(&[5]), PATIENCE, done);
    }
    drop(sender);
    let outcomes: Vec<Result<Found, FindError>> = outcomes.iter().collect();
    assert_eq!(outcomes.len(), 2);
    for outcome in outcomes {
        assert_eq!(outcome.unwrap().response.worker_ids, [5]);
    }
}

#[test]
fn a_current_thread_runtime_awaits_answers_without_another_thread() {
    let servers = [Running::start(), Running::start()];
    servers[1].script(UNAVAILABLE);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let finder = finder_of(&[&servers[0], &servers[1]]);
    finder.run_on(runtime.handle().clone());
    runtime.block_on(async {
        for _ in 0..4 {
            let found = finder.find_matches(&query(&[7]), PATIENCE).await.unwrap();
            assert_eq!(found.response.worker_ids, [7]);
            assert_eq!(*found.replica, servers[0].address.to_string());
        }
    });
    assert!(finder.replicas()[1].failures > 0);
    // Its connections belong to that runtime and end with it: calls fail, and do not wait.
    drop(runtime);
    let outcome = Runtime::new()
        .unwrap()
        .block_on(finder.find_matches(&query(&[7]), PATIENCE));
    let ended = |code| matches!(code, Code::Unavailable | Code::Cancelled);
    assert!(codes(&outcome).into_iter().all(ended), "{outcome:?}");
}

#[test]
fn a_background_call_ends_with_its_runtime() {
    let server = Running::start();
    server.script(Script::Hang);
    let finder = finder_of(&[&server]);
    let runtime = Runtime::new().unwrap();
    finder.run_on(runtime.handle().clone());
    let (sender, outcomes) = std::sync::mpsc::channel();
    let ask_soon = || {
        let sender = sender.clone();
        let done = move |outcome| sender.send(outcome).unwrap();
        finder.find_matches_soon(&query(&[5]), PATIENCE, done);
    };
    ask_soon();
    while server.queries() == 0 {
        std::thread::yield_now();
    }
    drop(runtime);
    ask_soon();
    for _ in 0..2 {
        assert_eq!(codes(&outcomes.recv().unwrap()), []);
    }
}

#[test]
fn a_call_that_is_dropped_harms_no_other() {
    let server = Running::start();
    let finder = finder_of(&[&server]);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        server.script(Script::Hang);
        let hanging = finder.find_matches(&query(&[1]), PATIENCE);
        tokio::select! {
            outcome = hanging => panic!("it hangs, but {outcome:?}"),
            () = async {
                while server.queries() == 0 {
                    tokio::task::yield_now().await;
                }
            } => (),
        }
        server.script(Script::Echo);
        assert!(finder.find_matches(&query(&[1]), PATIENCE).await.is_ok());
    });
    assert_eq!(finder.replicas()[0].failures, 0);
}

#[test]
fn another_replica_answers_for_one_that_fails_hangs_or_is_gone() {
    let good = Running::start();
    let address = good.address.to_string();
    let bad = Running::start();
    for script in [
        UNAVAILABLE,
        Script::Fail(Code::Internal, "a bug"),
        Script::Fail(Code::Unknown, ""),
        Script::Hang,
    ] {
        bad.script(script);
        let finder = finder_of(&[&bad, &good]);
        for _ in 0..4 {
            let found = finder.find_matches_blocking(&query(&[1]), Duration::from_secs(1));
            assert_eq!(*found.unwrap().replica, address, "{script:?}");
        }
        let [bad_health, good_health] = &finder.replicas()[..] else {
            panic!("two replicas")
        };
        assert!(bad_health.failures > 0 && bad_health.last_error.is_some());
        assert_eq!(good_health.failures, 0);
    }
    let finder = finder_at(&[nobody(), address.clone()]);
    assert_eq!(answering(&finder), HashSet::from([address]));
}

#[test]
fn all_replicas_that_failed_are_named_without_waiting_for_the_deadline() {
    let server = Running::start();
    server.script(UNAVAILABLE);
    let gone = nobody();
    let finder = finder_at(&[server.address.to_string(), gone.clone()]);
    let error = finder
        .find_matches_blocking(&query(&[]), Duration::MAX)
        .unwrap_err();
    let FindError::NoReplica { failures, .. } = &error else {
        panic!("{error}")
    };
    let named: HashSet<String> = failures.iter().map(|f| f.replica.to_string()).collect();
    assert_eq!(named, HashSet::from([server.address.to_string(), gone]));
    assert!(failures.iter().all(|f| f.code == Code::Unavailable));
    assert!(error.to_string().contains("not ready"));
}

#[test]
fn a_wrong_query_is_not_tried_elsewhere_and_no_failure_of_the_replica() {
    let servers = [Running::start(), Running::start()];
    let finder = finder_of(&[&servers[0], &servers[1]]);
    let ask_both = |script: Script| {
        for server in &servers {
            server.script(script);
        }
        ask(&finder).unwrap_err()
    };
    let error = ask_both(Script::Fail(Code::FailedPrecondition, "another módel"));
    assert!(matches!(&error, FindError::CellMismatch { .. }), "{error}");
    let text = "another módel (asked for model 'm', block size 16, hash contract 'c')";
    assert!(error.to_string().ends_with(text), "{error}");
    let error = ask_both(Script::Fail(Code::InvalidArgument, "too long"));
    assert!(matches!(&error, FindError::QueryRejected(_)), "{error}");
    assert_eq!(servers.iter().map(Running::queries).sum::<usize>(), 2);
    assert!(finder.replicas().iter().all(|each| each.failures == 0));
}

#[test]
fn a_server_that_hangs_costs_the_deadline_and_no_other_call() {
    let server = Running::start();
    let finder = finder_of(&[&server]);
    until(&finder, Result::is_ok);
    server.script(Script::Hang);
    let begin = Instant::now();
    let outcome = finder.find_matches_blocking(&query(&[1]), SHORT);
    assert_eq!(codes(&outcome), [Code::DeadlineExceeded]);
    assert!(begin.elapsed() >= SHORT);
    server.script(Script::Echo);
    assert!(ask(&finder).is_ok());
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    let servers = [Running::start(), Running::start()];
    let finder = finder_of(&[&servers[0], &servers[1]]);
    let [staying, leaving] = servers;
    let address = leaving.address;
    assert_eq!(answering(&finder).len(), 2);
    drop(leaving);
    let only = HashSet::from([staying.address.to_string()]);
    assert_eq!(answering(&finder), only);
    let _back = Running::start_at(address);
    let address = address.to_string();
    until(&finder, |outcome| {
        outcome
            .as_ref()
            .is_ok_and(|found| *found.replica == address)
    });
}

#[test]
fn a_server_that_says_goaway_is_left_and_the_query_is_asked_again() {
    let good = Running::start();
    let runtime = Runtime::new().unwrap();
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let leaving = listener.local_addr().unwrap().to_string();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = h2::server::Builder::new()
                    .handshake::<_, Bytes>(stream)
                    .await
                    .unwrap();
                let request = connection.accept().await;
                connection.abrupt_shutdown(h2::Reason::NO_ERROR);
                drop(request);
                while connection.accept().await.is_some() {}
            });
        }
    });
    let address = good.address.to_string();
    let finder = finder_at(&[leaving, address.clone()]);
    assert_eq!(answering(&finder), HashSet::from([address]));
    assert!(finder.replicas()[0].failures > 0);
}

#[test]
fn a_peer_that_never_speaks_costs_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let finder = finder_at(&[listener.local_addr().unwrap().to_string()]);
    let outcome = finder.find_matches_blocking(&query(&[]), SHORT);
    assert_eq!(codes(&outcome), [Code::DeadlineExceeded]);
}

#[test]
fn a_peer_that_speaks_something_else_is_an_error() {
    let runtime = Runtime::new().unwrap();
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            answer.await.unwrap();
        }
    });
    let finder = finder_at(&[address.to_string()]);
    assert_eq!(codes(&ask(&finder)), [Code::Unavailable]);
}

#[test]
fn a_closed_finder_refuses() {
    let server = Running::start();
    let finder = finder_of(&[&server]);
    until(&finder, Result::is_ok);
    finder.close();
    assert_eq!(codes(&ask(&finder)), [Code::Cancelled]);
    let (sender, outcomes) = std::sync::mpsc::channel();
    finder.find_matches_soon(&query(&[]), PATIENCE, move |outcome| {
        sender.send(outcome).unwrap();
    });
    assert_eq!(codes(&outcomes.recv().unwrap()), [Code::Cancelled]);
}
