//! Pure state machines of the event plane: the indexer's sequencer and the publisher's outbox.
