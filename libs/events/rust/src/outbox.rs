//! The publisher's outbox: a bounded queue of records towards one log writer.
