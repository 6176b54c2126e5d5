//! The frontend benchmark's native half: engines that answer at once, and HTTP load.
//!
//! Both have to be faster than the fastest router under test, on one core that they share. So a request is
//! copied from a template, and an answer is searched for its marks instead of being parsed.
//!
//! 1. [`command`] – the subcommands' flags and output
//! 2. [`engines`] – the engines
//! 3. [`requests`] – the requests, with new text each time
//! 4. [`connection`] – a client's connection: sends a request, times the answer
//! 5. [`load`] – patterns of load: closed loop, open loop, in turns with an engine, a burst

pub mod command;
mod connection;
mod engines;
mod load;
mod requests;
