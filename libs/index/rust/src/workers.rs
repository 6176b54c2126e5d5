//! Workers: the slots that stand for them in sets of holders.
//!
//! 1. [`worker_slots`] – the owner and state of each slot, its counts and digests
//! 2. [`view`] – who is matchable now, and the order of answers, as look-ups read them
//! 3. [`sweep`] – removal of the memberships of retired slots

pub(crate) mod sweep;
pub(crate) mod view;
pub(crate) mod worker_slots;
