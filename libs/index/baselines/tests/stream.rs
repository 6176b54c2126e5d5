//! Operation streams: round trips, the layout byte by byte, and refusal of everything else.

use kvatlas_baselines::stream::synthetic::{Plan, synthesize};
use kvatlas_baselines::stream::{Op, OpStream, Record, Recorder, Shape, StreamError, StreamSink};
use proptest::prelude::*;

const SHAPE: Shape = Shape {
    workers: 3,
    block_tokens: 128,
    id_tokens: 512,
    replicas: 30,
    capacity: 16_384,
    seed: 9,
    flags: 2,
};

fn bytes_of(stream: &OpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.write(&mut bytes).expect("memory takes it");
    bytes
}

fn small() -> OpStream {
    let mut recorder = Recorder::new(SHAPE);
    let store = Op::Store {
        parent: Some(77),
        chunks: &[5, 6],
    };
    for (time_ns, worker, op) in [
        (0, 0, Op::Query(&[1, 2, 3])),
        (10, 2, store),
        (10, 1, Op::Remove(&[9])),
    ] {
        let record = Record {
            time_ns,
            worker,
            op,
        };
        recorder.record(record).expect("it is in order");
    }
    recorder.finish()
}

#[test]
fn the_layout_is_the_documented_one() {
    let bytes = bytes_of(&small());
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(&bytes[..8], b"KVOPS\0\0\0");
    let shorts: Vec<u32> = (8..32).step_by(4).map(short).collect();
    assert_eq!(shorts, [1, 128, 3, 128, 512, 30]);
    let longs: Vec<u64> = (32..128).step_by(8).map(long).collect();
    assert_eq!(longs, [16_384, 9, 3, 10, 1, 1, 1, 3, 2, 1, 2, 0]);
    let second = 128 + 32 + 3 * 8;
    assert_eq!(long(second), 10);
    assert_eq!(bytes[second + 8..second + 12], [1, 0, 0, 0]);
    assert_eq!((short(second + 12), short(second + 16)), (2, 2));
    assert_eq!((short(second + 20), long(second + 24)), (0, 77));
    assert_eq!((long(second + 32), long(second + 40)), (5, 6));
    assert_eq!(bytes.len(), second + 32 + 16 + 32 + 8);
}

/// Byte to change, its new value, and the offset that the error must name.
#[test]
fn every_wrong_field_is_named_with_its_place() {
    let good = bytes_of(&small());
    let second = 128 + 32 + 3 * 8;
    let third = second + 32 + 16;
    for (at, value, named) in [
        (0, b'X', 0),
        (8, 2, 8),
        (12, 127, 12),
        (48, 2, 80),
        (56, 11, 56),
        (64, 2, 64),
        (80, 0, 80),
        (88, 4, 88),
        (104, 7, 104),
        (112, 4, 112),
        (120, 1, 120),
        (136, 3, 136),
        (137, 1, 136),
        (140, 3, 140),
        (148, 1, 148),
        (152, 1, 152),
        (third, 9, third),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        match OpStream::read(&bytes[..]) {
            Err(StreamError::Field { offset, .. }) => assert_eq!(offset, named as u64, "byte {at}"),
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

#[test]
fn a_stream_cut_anywhere_is_truncated_there() {
    let bytes = bytes_of(&small());
    for end in 0..bytes.len() {
        match OpStream::read(&bytes[..end]) {
            Err(StreamError::Truncated { offset, .. }) => assert_eq!(offset, end as u64),
            other => panic!("{end} bytes: {other:?}"),
        }
    }
}

#[test]
fn a_count_beyond_the_bytes_is_an_error_not_an_allocation() {
    let mut bytes = bytes_of(&small());
    bytes[144..148].fill(0xff);
    assert!(matches!(
        OpStream::read(&bytes[..]),
        Err(StreamError::Truncated { .. })
    ));
    let mut bytes = bytes_of(&small());
    bytes[48..56].fill(0xff);
    assert!(matches!(
        OpStream::read(&bytes[..]),
        Err(StreamError::Truncated { .. })
    ));
}

#[test]
fn bytes_after_the_last_record_are_refused() {
    let mut bytes = bytes_of(&small());
    bytes.push(0);
    let end = bytes.len() as u64 - 1;
    assert!(matches!(
        OpStream::read(&bytes[..]),
        Err(StreamError::Trailing { offset }) if offset == end
    ));
}

#[test]
fn records_that_the_format_cannot_hold_are_refused() {
    let mut recorder = Recorder::new(SHAPE);
    let record = |time_ns, worker, op| Record {
        time_ns,
        worker,
        op,
    };
    recorder.record(record(5, 0, Op::Query(&[]))).unwrap();
    let orphan = Op::Store {
        parent: Some(0),
        chunks: &[1],
    };
    for wrong in [
        record(4, 0, Op::Query(&[])),
        record(5, 3, Op::Query(&[])),
        record(5, 0, orphan),
    ] {
        assert!(matches!(
            recorder.record(wrong),
            Err(StreamError::Unrecordable { number: 1, .. })
        ));
    }
    assert_eq!(recorder.finish().totals().records, [1, 0, 0]);
}

#[test]
fn a_synthetic_stream_is_prefix_closed_and_reads_back() {
    let plan = Plan {
        workers: 4,
        prompts: 600,
        sessions: 3,
        hub_blocks: 3,
        turn_blocks: 4,
        turns: 5,
        capacity: 120,
        seed: 1,
    };
    let stream = synthesize(&plan).expect("the plan has workers");
    assert_eq!(OpStream::read(&bytes_of(&stream)[..]).unwrap(), stream);
    assert!(stream.totals().records.iter().all(|&count| count > 100));

    let mut held = vec![std::collections::BTreeMap::new(); 4];
    for record in stream.records() {
        let held = &mut held[record.worker as usize];
        match record.op {
            Op::Query(_) => {}
            Op::Store { parent, chunks } => {
                let mut before = parent;
                for &chunk in chunks {
                    assert!(before.is_none_or(|hash| held.contains_key(&hash)));
                    let hash =
                        before.map_or(chunk, |hash| kvatlas_hashing::sequence_step(hash, chunk));
                    held.insert(hash, before);
                    before = Some(hash);
                }
                assert!(held.len() <= 120);
            }
            Op::Remove(hashes) => {
                for hash in hashes {
                    assert!(held.remove(hash).is_some());
                    assert!(held.values().all(|parent| *parent != Some(*hash)));
                }
            }
        }
    }
}

type Drawn = (u64, u32, u8, u64, Vec<u64>);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn a_written_stream_reads_back(
        drawn in prop::collection::vec(any::<Drawn>(), 0..20),
        numbers in any::<(u32, u32, u32, u64, u64)>(),
        flags in 0u64..4,
    ) {
        let shape = Shape {
            workers: u32::MAX,
            block_tokens: numbers.0,
            id_tokens: numbers.1,
            replicas: numbers.2,
            capacity: numbers.3,
            seed: numbers.4,
            flags,
        };
        let mut recorder = Recorder::new(shape);
        let mut times: Vec<u64> = drawn.iter().map(|drawn| drawn.0).collect();
        times.sort_unstable();
        let records: Vec<_> = times.into_iter().zip(&drawn).map(|(time_ns, drawn)| {
            let (_, worker, kind, parent, hashes) = drawn;
            let op = match kind % 3 {
                0 => Op::Query(hashes),
                1 => Op::Store { parent: (*parent != 0).then_some(*parent), chunks: hashes },
                _ => Op::Remove(hashes),
            };
            Record { time_ns, worker: worker % u32::MAX, op }
        }).collect();
        for &record in &records {
            recorder.record(record).unwrap();
        }
        let stream = recorder.finish();
        let read = OpStream::read(&bytes_of(&stream)[..]).unwrap();
        prop_assert_eq!(&read, &stream);
        prop_assert_eq!(read.records().collect::<Vec<_>>(), records);
        prop_assert_eq!(read.shape(), shape);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(at in 0usize..300, value: u8, cut in 0usize..300) {
        let mut bytes = bytes_of(&small());
        let at = at % bytes.len();
        bytes[at] = value;
        bytes.truncate(cut.max(at));
        let _ = OpStream::read(&bytes[..]);
    }
}

#[test]
fn a_stream_written_record_by_record_is_the_one_written_at_once() {
    let stream = small();
    let mut file = std::io::Cursor::new(Vec::new());
    let mut sink = StreamSink::new(&mut file, SHAPE).expect("memory takes it");
    for record in stream.records() {
        sink.record(record).expect("it is in order");
    }
    let late = Record {
        time_ns: 9,
        worker: 0,
        op: Op::Query(&[1]),
    };
    let refused = sink.record(late);
    assert!(matches!(
        refused,
        Err(StreamError::Unrecordable { number: 3, .. })
    ));
    assert_eq!(sink.finish().expect("memory takes it").0, stream.totals());
    assert_eq!(file.into_inner(), bytes_of(&stream));
}

#[test]
fn an_unfinished_stream_is_refused() {
    let mut file = std::io::Cursor::new(Vec::new());
    let _unfinished = StreamSink::new(&mut file, SHAPE).expect("memory takes it");
    let error = OpStream::read(&file.into_inner()[..]).expect_err("it has no header");
    assert!(error.to_string().contains("the magic"), "{error}");
}
