//! The index benchmark's native half: one stream made, one trial played, per process.
//!
//! 1. [`args`] – command lines
//! 2. [`trace`], [`arrivals`], [`engine`], [`cache`], [`timeline`] – a trace, when its requests come, the
//!    mock engines that serve them, and the stream made of what they say
//! 3. [`target`] – the index under test: any design, or the flat index as services use it
//! 4. [`pace`], [`play`], [`cpu`], [`played`] – when a record is due; the issuing thread and those that
//!    apply; what they cost; what a trial gave
//! 5. [`verify`] – whether the answers are right afterwards
//! 6. [`micro`] – single calls
//! 7. [`stream_command`], [`play_command`] – what the subcommands read and print

mod args;
mod arrivals;
mod cache;
mod cpu;
mod engine;
mod micro;
mod pace;
mod play;
mod play_command;
mod played;
mod stream_command;
mod target;
mod timeline;
mod trace;
mod verify;

use std::process::ExitCode;

use kvatlas_baselines::counting::Counting;

/// Why a subcommand ended early.
pub enum Refusal {
    /// The command line is wrong.
    Usage(String),
    /// What it names cannot be read, written, or trusted.
    Failed(String),
}

impl From<String> for Refusal {
    fn from(problem: String) -> Self {
        Self::Usage(problem)
    }
}

/// Runs the subcommand, if it is one of these.
pub fn command(name: &str, words: &[String], allocator: &'static Counting) -> Option<ExitCode> {
    let done = match name {
        "index-stream" => stream_command::run(words),
        "index-play" => play_command::run(words, allocator),
        "index-micro" => micro::run(words, allocator),
        "index-designs" => play_command::designs(words),
        _ => return None,
    };
    Some(match done {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(Refusal::Usage(problem)) => {
            eprintln!("kvatlas-loadgen {name}: {problem}");
            ExitCode::from(2)
        }
        Err(Refusal::Failed(problem)) => {
            eprintln!("kvatlas-loadgen {name}: {problem}");
            ExitCode::FAILURE
        }
    })
}
