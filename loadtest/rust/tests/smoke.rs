//! The load generator runs, small, against a real server; a wrong answer makes it fail. HTTP load runs against
//! the generator's own engines.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_cell::server::Server;
use kvatlas_cell::{Cell, CellConfig};
use kvatlas_events::sequencer::Limits;

fn server() -> Server {
    let limits = Limits {
        hold_back_batches: 8,
        hold_back_ms: 1_000,
        recover_ms: 1_000,
        snapshot_parts: 8,
        snapshot_hashes: 1_000,
    };
    let config = CellConfig {
        cell: "default".into(),
        model: "model".into(),
        block_size: 16,
        hash_contract: "xxh3-1337-v1".into(),
        replica_id: "replica".into(),
        version: "test".into(),
        lease_ms: 60_000,
        limits,
        memory_bytes_max: 1 << 30,
    };
    let cell = Arc::new(Cell::new(config));
    cell.set_ready(true);
    let unix_ms = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis()
            .try_into()
            .unwrap()
    };
    Server::start(&cell, ("127.0.0.1", 0), 2, unix_ms).unwrap()
}

fn run(server: &Server, words: &str) -> Output {
    let address = server.address().to_string();
    Command::new(env!("CARGO_BIN_EXE_kvatlas-loadgen"))
        .arg("find-matches")
        .args(["--address", &address])
        .args(words.split_whitespace())
        .output()
        .unwrap()
}

#[test]
fn a_small_run_fills_asks_and_finds_every_answer_right() {
    let server = server();
    let small = "--workers 3 --blocks 400 --depth 32 --queries 50 --warmup 10 --calls 400";
    for more in [
        "",
        "--hashes sequence --limit 2 --connections 3 --concurrency 4 --fill no",
    ] {
        let output = run(&server, &format!("{small} {more}"));
        let line = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{line} {:?}",
            String::from_utf8(output.stderr)
        );
        assert!(
            line.contains("\"errors\":0") && line.lines().count() == 1,
            "{line}"
        );
    }
    server.stop(Duration::from_secs(1));
}

#[test]
fn an_index_that_holds_something_else_is_noticed() {
    let server = server();
    let small = "--blocks 400 --depth 32 --queries 50 --warmup 0 --calls 50";
    assert!(
        run(&server, &format!("{small} --workers 3"))
            .status
            .success()
    );
    let output = run(&server, &format!("{small} --workers 4 --fill no"));
    let line = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(line.contains("wrong answer"), "{line}");
    server.stop(Duration::from_secs(1));
}

#[test]
fn every_pattern_of_http_load_gets_its_answers_from_the_engines() {
    let program = env!("CARGO_BIN_EXE_kvatlas-loadgen");
    let mut engines = Command::new(program)
        .args(["http-engines", "--engines", "2", "--interval-ms", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(engines.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let addresses = ready["listen"].as_str().unwrap().replace(' ', ",");
    let (target, _) = addresses.split_once(',').unwrap();
    let requests = std::env::temp_dir().join(format!("http-load-{}", std::process::id()));
    let long = "x".repeat(2 << 20); // the engines answer such a body with one event
    let bodies = format!("{{\"max_tokens\": 3}}\n{{\"prompt\": \"{long}\", \"max_tokens\": 3}}\n");
    std::fs::write(&requests, bodies).unwrap();
    for (pattern, flags, answers) in [
        ("closed", "--connections 2 --seconds 0.1 --pause-ms 1", 0),
        ("open", "--rate 100 --seconds 0.1", 0),
        (
            "turns",
            &*format!("--engines {addresses} --rounds 4 --warm-up 2"),
            4,
        ),
        ("burst", "--streams 6", 6),
    ] {
        let output = Command::new(program)
            .args(["http-load", "--pattern", pattern, "--target", target])
            .args(["--count-header", "content-type", "--requests"])
            .arg(&requests)
            .args(flags.split_whitespace())
            .output()
            .unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{pattern}: {:?}", output.stderr);
        let report: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(report["errors"], 0, "{pattern}: {line}");
        let requests = report["requests"].as_u64().unwrap();
        assert!(
            requests > 0 && (answers == 0 || requests == answers),
            "{pattern}: {line}"
        );
        let kinds = report["header"].as_object().unwrap();
        assert!(
            kinds.contains_key("text/event-stream; charset=utf-8"),
            "{line}"
        );
        if pattern == "burst" {
            assert_eq!(report["events"], 3 * 4 + 3 * 2, "{line}"); // [DONE] is an event too
        }
    }
    let refused = Command::new(program)
        .args([
            "http-load",
            "--pattern",
            "closed",
            "--target",
            "127.0.0.1:1",
            "--requests",
        ])
        .arg(&requests)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    std::fs::remove_file(&requests).unwrap();
    engines.kill().unwrap();
    engines.wait().unwrap();
}
