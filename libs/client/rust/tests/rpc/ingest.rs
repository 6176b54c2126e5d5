//! The publisher's stream against a real tonic server, and against peers that are none.

use std::io::Write;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::server::{Running, SLOW};
use kvatlas_client::{Code, IngestResponse, IngestStream, Status};

/// Long enough that a test which meets it has failed.
const PATIENCE: Duration = Duration::from_secs(30);

type Outcome = Result<IngestResponse, Status>;

fn stream_to(server: &Running) -> IngestStream {
    IngestStream::open(&server.address.to_string(), PATIENCE).unwrap()
}

/// Appends, and gives a place to wait for the outcome.
fn append(stream: &IngestStream, records: &[&[u8]]) -> Receiver<Outcome> {
    let (told, outcome) = channel();
    stream
        .append(records.iter().copied(), move |answer| {
            told.send(answer).unwrap();
        })
        .unwrap();
    outcome
}

fn said(outcome: &Receiver<Outcome>) -> Outcome {
    outcome.recv_timeout(PATIENCE).unwrap()
}

fn code(outcome: &Receiver<Outcome>) -> Code {
    said(outcome).expect_err("an error was expected").code()
}

/// Waits until the call has ended; then nothing can be appended.
fn end(stream: &IngestStream) {
    let begin = Instant::now();
    while !stream.is_over() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let refused = stream.append([], |_| panic!("told twice"));
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
}

#[test]
fn an_append_of_many_requests_is_answered_once_with_all_that_was_said() {
    let server = Running::start();
    let stream = stream_to(&server);
    let large = vec![7; 100_000];
    let records: Vec<&[u8]> = (1..=40).map(|count| &large[..count * 2_500]).collect();
    let outcomes: Vec<_> = (0..5).map(|_| append(&stream, &records)).collect();
    let lens: Vec<u64> = records.iter().map(|record| record.len() as u64).collect();
    for outcome in outcomes {
        let answer = said(&outcome).unwrap();
        assert_eq!(answer.accepted, 40);
        let workers = answer.positions.iter().map(|each| each.worker.unwrap());
        assert_eq!(workers.map(|each| each.worker_id).collect::<Vec<_>>(), lens);
    }
    assert_eq!(said(&append(&stream, &[])).unwrap().accepted, 0);
}

#[test]
fn an_answer_of_many_frames_is_put_together() {
    let server = Running::start();
    let stream = stream_to(&server);
    let (wide, next) = (append(&stream, &[b"wide"]), append(&stream, &[b"x"]));
    assert_eq!(said(&wide).unwrap().positions.len(), 100_000);
    assert_eq!(said(&next).unwrap().positions.len(), 1);
}

#[test]
fn everybody_who_waits_is_told_why_the_call_ended() {
    let server = Running::start();
    for (word, why) in [
        (&b"end"[..], Code::Unavailable),
        (b"fail", Code::FailedPrecondition),
    ] {
        let stream = stream_to(&server);
        let before = append(&stream, &[b"x"]);
        let last = append(&stream, &[word]);
        let after = append(&stream, &[b"x"]);
        assert!(said(&before).is_ok());
        assert_eq!((code(&last), code(&after)), (why, why));
        end(&stream);
    }
}

#[test]
fn closing_cancels_what_waits() {
    let server = Running::start();
    let stream = stream_to(&server);
    let waiting = append(&stream, &[b"hang"]);
    stream.close();
    assert_eq!(code(&waiting), Code::Cancelled);
    end(&stream);
}

#[test]
fn a_server_that_lets_an_append_wait_for_too_long_is_given_up() {
    let server = Running::start();
    let short = Duration::from_millis(20);
    let stream = IngestStream::open(&server.address.to_string(), short).unwrap();
    let (hangs, behind) = (append(&stream, &[b"hang"]), append(&stream, &[b"x"]));
    let told = said(&hangs).unwrap_err();
    assert_eq!(told.code(), Code::DeadlineExceeded);
    assert!(told.message().contains("within 0.02 s"), "{told}");
    assert_eq!(code(&behind), Code::DeadlineExceeded);
    end(&stream);
}

#[test]
fn a_server_that_answers_slowly_and_steadily_is_waited_for() {
    let server = Running::start();
    let patience = 10 * SLOW;
    let stream = IngestStream::open(&server.address.to_string(), patience).unwrap();
    // Too large to share a request, so each is answered by itself.
    let mut record = vec![0; 100_000];
    record[..4].copy_from_slice(b"slow");
    let records = vec![&record[..]; 15];
    let begin = Instant::now();
    let (first, second) = (append(&stream, &records), append(&stream, &records[..5]));
    assert_eq!(said(&first).unwrap().accepted, 15);
    assert_eq!(said(&second).unwrap().accepted, 5);
    assert!(begin.elapsed() > patience);
}

#[test]
fn a_server_that_goes_away_ends_the_call() {
    let server = Running::start();
    let stream = stream_to(&server);
    assert!(said(&append(&stream, &[b"x"])).is_ok());
    let waiting = append(&stream, &[b"hang"]);
    drop(server);
    assert_eq!(code(&waiting), Code::Unavailable);
    end(&stream);
}

#[test]
fn a_server_that_resets_the_call_as_cancelled_is_gone_all_the_same() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = IngestStream::open(&listener.local_addr().unwrap().to_string(), PATIENCE).unwrap();
    let waiting = append(&stream, &[b"x"]);
    let (socket, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let peer = async {
        let socket = tokio::net::TcpStream::from_std(socket).unwrap();
        let mut calls = h2::server::handshake(socket).await.unwrap();
        let (_, mut answer) = calls.accept().await.unwrap().unwrap();
        answer.send_reset(h2::Reason::CANCEL);
        calls.accept().await.is_none()
    };
    let told = std::thread::spawn(move || code(&waiting));
    assert!(runtime.block_on(peer));
    assert_eq!(told.join().unwrap(), Code::Unavailable);
    end(&stream);
}

#[test]
fn nobody_listening_is_said() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let stream = IngestStream::open(&address, PATIENCE).unwrap();
    // The attempt may be over before the append; then there is nothing to wait for.
    let (told, outcome) = channel();
    if stream
        .append([&b"x"[..]], move |answer| told.send(answer).unwrap())
        .is_ok()
    {
        assert_eq!(code(&outcome), Code::Unavailable);
    }
    end(&stream);
    let late = stream.append([], |_| panic!("told twice")).unwrap_err();
    assert!(late.message().contains("refused"), "{late}");
}

#[test]
fn a_peer_that_speaks_something_else_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = IngestStream::open(&listener.local_addr().unwrap().to_string(), PATIENCE).unwrap();
    let waiting = append(&stream, &[b"x"]);
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    assert_eq!(code(&waiting), Code::Unavailable);
    end(&stream);
}

#[test]
fn an_address_is_a_host_and_a_port() {
    for bad in ["", "host", ":80", "http://host:80"] {
        assert!(IngestStream::open(bad, PATIENCE).is_err(), "{bad}");
    }
}
