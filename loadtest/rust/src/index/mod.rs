//! The index benchmark's native half: makes one stream or plays one trial per process.
//!
//! 1. [`trace`], [`arrivals`], [`engine`], [`cache`], [`timeline`] – a trace, the arrivals of its requests, the
//!    mock engines that serve them, and the stream of their events
//! 2. [`target`] – the index under test: any design, or the flat index as services use it
//! 3. [`schedule`], [`play`], [`cpu`], [`trial_result`] – when a record is due; the issuing and the applying
//!    threads; their processor time; the result of a trial
//! 4. [`verify`] – checks the answers afterwards
//! 5. [`micro`] – single calls
//! 6. [`stream_command`], [`play_command`], [`micro_command`] – the subcommands' flags and output

mod arrivals;
mod cache;
pub mod cpu;
pub mod engine;
mod micro;
pub mod micro_command;
mod play;
pub mod play_command;
mod schedule;
pub mod stream_command;
mod target;
mod timeline;
mod trace;
mod trial_result;
mod verify;
