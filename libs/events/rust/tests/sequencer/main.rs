//! The rules of the sequencer.

mod bench;
mod jumps;
mod rules;
