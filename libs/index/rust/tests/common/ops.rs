//! One step of a history, in small numbers, so that shrinking makes them smaller.

use proptest::prelude::*;

#[derive(Clone, Debug)]
pub enum Op {
    Allocate {
        worker: u8,
    },
    SetState {
        slot: u8,
        state: u8,
    },
    Replace {
        slot: u8,
    },
    Store {
        slot: u8,
        tier: u8,
        prompt: u8,
        from: u8,
        to: u8,
    },
    Remove {
        slot: u8,
        tier: u8,
        prompt: u8,
        from: u8,
        to: u8,
    },
    Offload {
        slot: u8,
        tier: u8,
        prompt: u8,
        to: u8,
    },
    Clear {
        slot: u8,
        tier: u8,
    },
    Sweep {
        budget: u8,
    },
    Find {
        prompt: u8,
        limit: u8,
        exact: bool,
    },
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => any::<u8>().prop_map(|worker| Op::Allocate { worker }),
        4 => any::<(u8, u8)>().prop_map(|(slot, state)| Op::SetState { slot, state }),
        1 => any::<u8>().prop_map(|slot| Op::Replace { slot }),
        12 => any::<(u8, u8, u8, u8, u8)>().prop_map(|(slot, tier, prompt, from, to)| {
            Op::Store { slot, tier, prompt, from, to }
        }),
        6 => any::<(u8, u8, u8, u8, u8)>().prop_map(|(slot, tier, prompt, from, to)| {
            Op::Remove { slot, tier, prompt, from, to }
        }),
        2 => any::<(u8, u8, u8, u8)>()
            .prop_map(|(slot, tier, prompt, to)| Op::Offload { slot, tier, prompt, to }),
        1 => any::<(u8, u8)>().prop_map(|(slot, tier)| Op::Clear { slot, tier }),
        2 => any::<u8>().prop_map(|budget| Op::Sweep { budget }),
        4 => any::<(u8, u8, bool)>().prop_map(|(prompt, limit, exact)| {
            Op::Find { prompt, limit, exact }
        }),
    ];
    prop::collection::vec(op, 0..120)
}
