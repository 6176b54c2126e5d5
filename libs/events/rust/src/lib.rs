//! Pure state machines of the event plane: the indexer's sequencer and the publisher's outbox.
//!
//! Neither knows bytes on a wire, a clock or a socket: the services, the tests and a model checker
//! drive the same code.

pub mod outbox;
pub mod sequencer;
