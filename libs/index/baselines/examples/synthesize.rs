//! Writes a synthetic operation stream to a file, for players in other languages and projects.
//!
//! `cargo run --release -p kvatlas-baselines --example synthesize -- FILE [large]`

use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;

use kvatlas_baselines::stream::StreamError;
use kvatlas_baselines::stream::synthetic::{Plan, synthesize};

fn write(path: &str, plan: &Plan) -> Result<(), StreamError> {
    let stream = synthesize(plan)?;
    let failed = |source| StreamError::Io { offset: 0, source };
    stream.write(BufWriter::new(File::create(path).map_err(failed)?))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (path, plan) = match arguments[..] {
        [path] => (path, Plan::SMALL),
        [path, "large"] => (path, Plan::LARGE),
        _ => {
            eprintln!("usage: synthesize FILE [large]");
            return ExitCode::from(2);
        }
    };
    match write(path, &plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}
