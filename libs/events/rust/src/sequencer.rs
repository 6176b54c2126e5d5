//! The indexer's sequencer: one small state machine per worker.
