//! Pure state machines of the event plane: the indexer's sequencer and the publisher's outbox.
//!
//! They know no wire format, no clock and no socket, so services, tests and a model checker drive the same
//! code. [`sequencer`] has the rules of epochs and event ids.

pub mod outbox;
pub mod sequencer;
