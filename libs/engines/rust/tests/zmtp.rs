//! A subscriber finds the same messages however a peer's bytes are cut.

use kvatlas_engines::{MESSAGE_BYTES_MAX, ProtocolError, Subscriber};
use proptest::prelude::*;

type Messages = Vec<(u64, Vec<u8>)>;

fn greeting() -> Vec<u8> {
    let mut greeting = Subscriber::greeting().to_vec();
    greeting[11] = 1; // today's libraries speak 3.1
    greeting
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    match u8::try_from(body.len()) {
        Ok(size) => [&[flags, size], body].concat(),
        Err(_) => [&[flags | 2], &(body.len() as u64).to_be_bytes()[..], body].concat(),
    }
}

fn ready(kind: &[u8]) -> Vec<u8> {
    let size = [0, 0, 0, kind.len() as u8];
    let body = [
        b"\x05READY\x08Identity\0\0\0\0\x0bSocket-Type",
        &size[..],
        kind,
    ]
    .concat();
    frame(4, &body)
}

fn message(seq: &[u8], payload: &[u8]) -> Vec<u8> {
    [frame(1, b"kv-events"), frame(1, seq), frame(0, payload)].concat()
}

fn receive(subscriber: &mut Subscriber, bytes: &[u8]) -> Result<(), ProtocolError> {
    subscriber.receive(bytes.len(), |into| into.copy_from_slice(bytes))
}

fn take(subscriber: &mut Subscriber) -> (Messages, usize) {
    let received = subscriber.received();
    let messages = received.messages.iter();
    let taken = messages.map(|(seq, at)| (*seq, received.bytes[at.clone()].to_vec()));
    let taken = (taken.collect(), received.malformed);
    subscriber.clear_received();
    taken
}

fn opened() -> Subscriber {
    let mut subscriber = Subscriber::default();
    receive(&mut subscriber, &greeting()).unwrap();
    receive(&mut subscriber, &ready(b"PUB")).unwrap();
    assert!(subscriber.is_open());
    subscriber.take_outgoing();
    subscriber
}

fn why_broken(bytes: &[u8]) -> String {
    receive(&mut Subscriber::default(), bytes).unwrap_err().0
}

#[test]
fn it_is_ready_when_greeted_and_subscribes_when_the_peer_is_ready() {
    let mut subscriber = Subscriber::default();
    receive(&mut subscriber, &greeting()[..63]).unwrap();
    assert!(subscriber.take_outgoing().is_empty());
    receive(&mut subscriber, &greeting()[63..]).unwrap();
    assert_eq!(
        subscriber.take_outgoing(),
        frame(4, b"\x05READY\x0bSocket-Type\0\0\0\x03SUB")
    );
    assert!(!subscriber.is_open());
    receive(&mut subscriber, &ready(b"XPUB")).unwrap();
    assert!(subscriber.is_open());
    assert_eq!(subscriber.take_outgoing(), frame(0, b"\x01"));
}

#[test]
fn a_ping_is_answered_with_its_context() {
    let mut subscriber = opened();
    receive(&mut subscriber, &frame(4, b"\x04PING\0\x10context")).unwrap();
    assert_eq!(subscriber.take_outgoing(), frame(4, b"\x04PONGcontext"));
    assert!(
        receive(
            &mut subscriber,
            &frame(4, b"\x04PING\0\x1012345678901234567")
        )
        .is_err()
    );
}

#[test]
fn a_peer_that_is_no_engine_is_told_from_one() {
    assert!(why_broken(b"HTTP/1.1 400").contains("does not speak ZMTP 3"));
    assert!(why_broken(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01").contains("ZMTP 1"));
    let mut curve = greeting();
    curve[12..17].copy_from_slice(b"CURVE");
    assert!(why_broken(&curve).contains("CURVE"));
    assert!(why_broken(&[greeting(), ready(b"ROUTER")].concat()).contains("ROUTER"));
    let refusal = frame(4, b"\x05ERROR\x02no");
    assert!(why_broken(&[greeting(), refusal].concat()).contains("\"no\""));
    let early = [greeting(), message(&[0; 8], b"")].concat();
    assert!(why_broken(&early).contains("before the handshake"));
    let cut = frame(4, b"\x05READY\x0bSocket-Type\0\0\0\x09PUB");
    assert!(why_broken(&[greeting(), cut].concat()).contains("cut short"));
}

#[test]
fn a_claimed_size_is_refused_before_it_is_waited_for() {
    let claimed = |size: u64| [&[3][..], &size.to_be_bytes()].concat();
    for size in [MESSAGE_BYTES_MAX as u64, u64::MAX] {
        assert!(receive(&mut opened(), &claimed(size)).is_err());
    }
    let mut subscriber = opened();
    let rest = MESSAGE_BYTES_MAX as u64 - 12 - 9;
    receive(&mut subscriber, &frame(1, &[7; 10])).unwrap();
    receive(&mut subscriber, &claimed(rest)).unwrap();
    assert!(take(&mut subscriber).0.is_empty());
    let mut subscriber = opened();
    receive(&mut subscriber, &frame(1, &[7; 10])).unwrap();
    assert!(receive(&mut subscriber, &claimed(rest + 1)).is_err());
}

#[test]
fn what_is_no_message_of_an_engine_is_counted_and_spoils_no_other() {
    let mut subscriber = opened();
    let end = [0xff; 8];
    let bytes = [
        frame(0, b"alone"),
        message(b"short", b"x"),
        message(&end, b"x"),
        message(&end, b""), // of a replay; nothing is wrong with it
        message(&5_u64.to_be_bytes(), b"five"),
    ];
    receive(&mut subscriber, &bytes.concat()).unwrap();
    assert!(
        subscriber
            .received()
            .first_malformed
            .unwrap()
            .starts_with("1 frames")
    );
    assert_eq!(take(&mut subscriber), (vec![(5, b"five".to_vec())], 3));
    assert_eq!(take(&mut subscriber), (vec![], 0));
}

#[test]
fn a_command_has_no_place_within_a_message() {
    let within = [frame(1, b"topic"), frame(4, b"\x04PING\0\0")].concat();
    assert!(receive(&mut opened(), &within).is_err());
    assert!(receive(&mut opened(), &frame(5, b"\x04PING\0\0")).is_err());
}

proptest! {
    #[test]
    fn however_the_bytes_are_cut_and_taken_the_messages_are_the_same(
        sizes in prop::collection::vec(0..700_usize, 0..20),
        cuts in prop::collection::vec((0..4_000_usize, any::<bool>()), 0..20),
    ) {
        let sent: Messages = sizes
            .iter()
            .enumerate()
            .map(|(seq, size)| (seq as u64, vec![seq as u8; *size]))
            .collect();
        let mut bytes = [greeting(), ready(b"PUB")].concat();
        for (seq, payload) in &sent {
            bytes.extend(message(&seq.to_be_bytes(), payload));
            bytes.extend(frame(4, b"\x04PING\0\0"));
        }
        let mut subscriber = Subscriber::default();
        let mut received = Messages::new();
        let mut rest = &bytes[..];
        for (length, takes) in cuts {
            let (now, later) = rest.split_at(length.min(rest.len()));
            receive(&mut subscriber, now).unwrap();
            rest = later;
            if takes {
                received.extend(take(&mut subscriber).0);
            }
        }
        receive(&mut subscriber, rest).unwrap();
        received.extend(take(&mut subscriber).0);
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn arbitrary_bytes_break_the_connection_at_worst(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut subscriber = opened();
        let _ = receive(&mut subscriber, &bytes);
        take(&mut subscriber);
        let _ = receive(&mut Subscriber::default(), &bytes);
    }
}
