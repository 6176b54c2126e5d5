//! The index against nested dictionaries, over random histories, with shrinking.
//!
//! A history is played to both; after it, everything that can be asked is compared: every prompt in every form, summaries,
//! dumps, tiers of blocks. Histories of the first property are prefix-closed, as a publisher's are. Those of the second
//! store and remove blocks anywhere, and only `exact` is asked. Each history is framed by one that reaches growth, bitmaps
//! and reuse, and the test asserts that it did: a property that never leaves inline sets would prove little.

mod common;

use common::comparison::Comparison;
use common::ops::ops;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn prefix_closed_histories_give_the_dictionaries_answers(ops in ops(), shard_bits in 0u32..3) {
        Comparison::new(shard_bits, true).run(&ops);
    }

    #[test]
    fn any_history_gives_the_dictionaries_answers_when_exact(ops in ops(), shard_bits in 0u32..3) {
        Comparison::new(shard_bits, false).run(&ops);
    }
}
