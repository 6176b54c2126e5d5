//! A message counts as a whole or not at all: a payload that proves malformed, or another rank's,
//! leaves no trace.

use kvatlas_engines::Engine;
use kvatlas_mirror::{ApplyOutcome, EngineMirror};
use kvatlas_pages::Memory;

const BLOCK_SIZE: usize = 2;

fn mirror(engine: Engine) -> EngineMirror {
    EngineMirror::new(engine, BLOCK_SIZE, 100, Memory::general())
}

fn text(text: &str) -> Vec<u8> {
    [&[0xa0 | text.len() as u8], text.as_bytes()].concat()
}

fn array(values: &[&[u8]]) -> Vec<u8> {
    [&[0x90 | values.len() as u8][..], &values.concat()].concat()
}

/// An event of a newer release, its fields in this order.
fn map(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let pairs = fields
        .iter()
        .map(|(name, value)| [&text(name), *value].concat());
    [
        vec![0x80 | fields.len() as u8],
        pairs.collect::<Vec<_>>().concat(),
    ]
    .concat()
}

fn message(events: &[&[u8]], rank: u8) -> Vec<u8> {
    array(&[&[0xcb, 0, 0, 0, 0, 0, 0, 0, 0], &array(events), &[rank]])
}

/// A prompt of two blocks of two tokens.
fn stored(first_hash: u8, token_ids: &[u8]) -> Vec<u8> {
    map(&[
        ("type", &text("BlockStored")),
        (
            "block_hashes",
            &array(&[&[first_hash], &[0xcc, first_hash + 1]]),
        ),
        ("parent_block_hash", b"\xc0"),
        ("token_ids", token_ids),
        ("block_size", &[BLOCK_SIZE as u8]),
        ("medium", &text("GPU")),
        ("group_idx", b"\x03"),
    ])
}

/// The same from an early release, whose arrays end before the extra keys.
fn stored_in_order(first_hash: u8, token_ids: &[u8]) -> Vec<u8> {
    let hashes = array(&[&[first_hash], &[first_hash + 1]]);
    array(&[
        &text("BlockStored"),
        &hashes,
        b"\xc0",
        token_ids,
        &[BLOCK_SIZE as u8],
        b"\xc0",
    ])
}

const TOKENS: &[u8] = b"\x94\x01\xcd\x12\x34\xce\x00\x01\xf8\xff\xcc\x80";

/// Everything that a mirror remembers, without its pending events.
fn state(mirror: &EngineMirror) -> Vec<u8> {
    mirror.export_state()
}

/// The outcome of one payload, and the reasons of its refusals.
fn apply(mirror: &mut EngineMirror, payload: &[u8]) -> (ApplyOutcome, Vec<&'static str>) {
    let outcome = mirror.apply_payloads(&[payload], 0);
    let reasons = outcome.refusals.iter().map(|refusal| refusal.reason.name());
    let reasons = reasons.collect();
    (outcome, reasons)
}

fn is_applied((outcome, reasons): &(ApplyOutcome, Vec<&str>)) -> bool {
    (outcome.consumed, outcome.malformed) == (1, 0) && reasons.is_empty()
}

#[test]
fn a_truncated_message_leaves_no_trace_wherever_it_ends() {
    let events: [&[u8]; 3] = [
        &stored(1, TOKENS),
        &stored_in_order(11, TOKENS),
        &map(&[
            ("type", &text("BlockRemoved")),
            ("block_hashes", b"\x91\x01"),
        ]),
    ];
    let payload = message(&events, 0);
    for engine in [Engine::Vllm, Engine::Sglang] {
        let mut mirror = mirror(engine);
        let untouched = state(&mirror);
        for length in 0..payload.len() {
            let (outcome, refusals) = apply(&mut mirror, &payload[..length]);
            assert_eq!(
                (outcome.consumed, outcome.malformed),
                (1, 1),
                "length {length}"
            );
            assert!(refusals.is_empty() && mirror.pending.events().is_empty());
            assert_eq!(state(&mirror), untouched, "length {length}");
        }
        let trailing = [&payload[..], b"\xc0"].concat();
        assert_eq!(apply(&mut mirror, &trailing).0.malformed, 1);
        assert_eq!(state(&mirror), untouched);
        assert_eq!(mirror.blind_spots().count(), 0);

        assert!(is_applied(&apply(&mut mirror, &payload)));
        assert_eq!(mirror.mirror.held_blocks(), 3);
        assert_ne!(mirror.blind_spots().count(), 0);
    }
}

#[test]
fn a_message_of_another_rank_leaves_no_trace() {
    let mut mirror = mirror(Engine::Vllm);
    let untouched = state(&mirror);
    let payload = message(&[&stored(1, TOKENS), &stored_in_order(11, TOKENS)], 5);
    let (outcome, _) = apply(&mut mirror, &payload);
    assert_eq!((outcome.consumed, outcome.other_rank), (0, Some(5)));
    assert_eq!(state(&mirror), untouched);
    assert!(mirror.pending.events().is_empty());
}

#[test]
fn token_ids_of_any_width_are_the_same_tokens() {
    let written: [&[u8]; 4] = [
        TOKENS,
        b"\x94\xcd\x00\x01\xce\x00\x00\x12\x34\xcf\x00\x00\x00\x00\x00\x01\xf8\xff\xcc\x80",
        b"\xdc\x00\x04\xd0\x01\xd1\x12\x34\xd2\x00\x01\xf8\xff\xd1\x00\x80",
        b"\xdd\x00\x00\x00\x04\xc3\xcd\x12\x34\xce\x00\x01\xf8\xff\xd3\x00\x00\x00\x00\x00\x00\x00\x80",
    ];
    let published = written.map(|token_ids| {
        let mut mirror = mirror(Engine::Vllm);
        let payload = message(&[&stored(1, token_ids), &stored(1, TOKENS)], 0);
        assert!(is_applied(&apply(&mut mirror, &payload)));
        mirror.pending.hashes().to_vec()
    });
    assert_eq!(published[0].len(), 2);
    assert!(published.iter().all(|hashes| *hashes == published[0]));
}

#[test]
fn the_tokens_of_refused_events_get_into_no_other() {
    let refused: [&[u8]; 3] = [
        b"\x94\x01\x02\x03\xa1x",
        b"\x94\x01\x02\x03\xce\xff\xff\xff\xff",
        b"\x93\x01\x02\x03",
    ];
    let mut expected = mirror(Engine::Vllm);
    apply(&mut expected, &message(&[&stored(21, TOKENS)], 0));
    for token_ids in refused {
        let mut mirror = mirror(Engine::Vllm);
        let nameless = map(&[("token_ids", TOKENS)]);
        let other_group = map(&[
            ("token_ids", token_ids),
            ("type", &text("BlockStored")),
            ("block_hashes", b"\x92\x01\x02"),
            ("block_size", &[BLOCK_SIZE as u8]),
            ("kv_cache_spec_kind", &text("mamba")),
        ]);
        let payload = message(&[&nameless, &other_group, &stored(21, TOKENS)], 0);
        let (outcome, reasons) = apply(&mut mirror, &payload);
        assert_eq!((outcome.consumed, outcome.malformed), (1, 0));
        assert_eq!(reasons, ["malformed_event", "other_group"]);
        assert_eq!(mirror.pending.hashes(), expected.pending.hashes());
    }
}

#[test]
fn of_a_field_that_comes_twice_the_last_one_counts() {
    let stored = |first: &[u8], last: &[u8]| {
        let event = map(&[
            ("token_ids", first),
            ("type", &text("BlockStored")),
            ("block_hashes", b"\x92\x01\x02"),
            ("token_ids", last),
            ("block_size", &[BLOCK_SIZE as u8]),
        ]);
        let mut mirror = mirror(Engine::Vllm);
        let (_, reasons) = apply(&mut mirror, &message(&[&event], 0));
        (reasons, mirror.pending.hashes().to_vec())
    };
    let no_tokens = b"\x94\x01\x02\x03\xa1x";
    assert_eq!(stored(TOKENS, no_tokens), (vec!["bad_tokens"], vec![]));
    let plain = stored(TOKENS, TOKENS);
    assert_eq!(plain.1.len(), 2);
    assert_eq!(stored(no_tokens, TOKENS), plain);
    assert_eq!(stored(b"\x91\x09", TOKENS), plain);
}
