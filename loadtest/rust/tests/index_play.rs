//! Streams made, played and verified by the program itself; bad input ends in one line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvatlas-loadgen"))
        .args(words)
        .output()
        .unwrap()
}

fn printed(words: &[&str]) -> serde_json::Value {
    let output = run(words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The exit status and the only line on standard error.
fn refused(words: &[&str]) -> (i32, String) {
    let output = run(words);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(output.stdout.is_empty());
    (output.status.code().unwrap(), error)
}

/// A trace of sessions that share an id, and a stream made of it.
fn stream(name: &str) -> String {
    let mut lines = String::new();
    for number in 0..300u64 {
        let session = number % 23;
        let ids: Vec<u64> = (0..=number / 23)
            .map(|turn| if turn == 0 { 0 } else { 100 * session + turn })
            .collect();
        lines += &format!(
            "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": 9, \"hash_ids\": {ids:?}}}\n",
            number / 5 * 100,
            ids.len() * 512 - 30,
        );
    }
    let (trace, out) = (
        place(&format!("{name}.jsonl")),
        place(&format!("{name}.kvops")),
    );
    std::fs::write(&trace, lines).unwrap();
    let out = out.to_str().unwrap().to_owned();
    let header = printed(&[
        "index-stream",
        "--trace",
        trace.to_str().unwrap(),
        "--out",
        &out,
        "--workers",
        "5",
        "--capacity",
        "60",
        "--replicas",
        "2",
    ]);
    assert_eq!(header["queries"], 600);
    assert!(header["remove_blocks"].as_u64() > Some(0));
    out
}

#[test]
fn every_design_plays_and_the_exact_ones_are_verified() {
    let stream = stream("designs");
    let designs = printed(&["index-designs"]);
    for design in designs.as_array().unwrap() {
        let name = design["name"].as_str().unwrap();
        let checks = if design["exact"] == true { "200" } else { "0" };
        let trial = printed(&[
            "index-play",
            "--stream",
            &stream,
            "--design",
            name,
            "--window-ms",
            "5",
            "--verify",
            checks,
            "--from-share",
            "0.3",
        ]);
        assert_eq!(trial["design"], name);
        assert!(trial["lookups"].as_u64() > Some(0));
        assert!(trial["bytes"].as_u64() > Some(0), "{name}");
        assert_eq!(trial["apply_ms"]["p50"].is_null(), design["queued"] == true);
    }
}

#[test]
fn a_wrong_answer_fails_the_verification() {
    let stream = stream("wrong");
    let (code, error) = refused(&[
        "index-play",
        "--stream",
        &stream,
        "--window-ms",
        "0",
        "--verify",
        "500",
        "--design",
        "nested dictionaries, unverified",
    ]);
    assert!(
        code == 1 && error.contains("wrong answer to query"),
        "{error}"
    );
}

#[test]
fn bad_input_ends_in_one_line() {
    let stream = stream("bad");
    let mut bytes = std::fs::read(&stream).unwrap();
    bytes.truncate(bytes.len() - 8);
    let cut = place("cut.kvops");
    std::fs::write(&cut, bytes).unwrap();
    let play = |path: &str, more: &[&str]| {
        let words = ["index-play", "--stream", path, "--window-ms", "0"];
        refused(&[&words, more].concat())
    };
    let flat = ["--design", "flat index"];
    for (path, told) in [
        (cut.to_str().unwrap(), "ends within the hashes"),
        ("/no/such/file", "No such file"),
    ] {
        let (code, error) = play(path, &flat);
        assert!(code == 1 && error.contains(told), "{error}");
    }
    for (more, told) in [
        (&["--design", "b-tree"][..], "no such design"),
        (
            &["--design", "radix tree", "--limit", "3"],
            "the flat index has them",
        ),
        (
            &["--design", "radix tree, actor", "--appliers", "2"],
            "threads of its own",
        ),
        (
            &["--design", "flat index", "--wrong", "3"],
            "--wrong is no flag",
        ),
        (
            &["--design", "flat index", "--from-share", "1"],
            "--from-share",
        ),
    ] {
        let (code, error) = play(&stream, more);
        assert!(code == 2 && error.contains(told), "{error}");
    }
    let make = |trace: &str, out: &str, more: &[&str]| {
        let words = ["index-stream", "--trace", trace, "--out", out];
        refused(&[&words, more].concat())
    };
    let trace = place("bad.jsonl");
    let trace = trace.to_str().unwrap();
    assert_eq!(make(trace, "/no/such/directory/out", &[]).0, 1);
    assert_eq!(make(&stream, "/no/such/directory/out", &[]).0, 1);
    assert_eq!(make(trace, "x", &["--block-size", "100"]).0, 2);
    assert_eq!(make(trace, "x", &["--workers", "0"]).0, 2);
    assert_eq!(refused(&["index-designs", "--all"]).0, 2);
}

#[test]
fn single_calls_are_timed_in_lines_of_json() {
    for design in ["flat index", "radix tree, actor"] {
        let output = run(&["index-micro", "--quick", "--design", design]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let lines: Vec<serde_json::Value> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let of = |operation: &str| {
            let lines = lines.iter().filter(|line| line["operation"] == operation);
            lines.cloned().collect::<Vec<_>>()
        };
        for operation in ["query", "store", "remove", "empty", "size"] {
            assert!(!of(operation).is_empty(), "{design}: {operation}");
        }
        let flat = design == "flat index";
        assert_eq!(of("retire").len(), usize::from(flat));
        assert_eq!(of("sweep").len(), usize::from(flat));
        assert_eq!(of("query").iter().any(|line| line["limit"] == 32), flat);
        assert!(
            of("query")
                .iter()
                .all(|line| line["us"].as_f64() > Some(0.0))
        );
    }
    assert_eq!(
        refused(&["index-micro", "--large", "--design", "radix tree"]).0,
        2
    );
}
