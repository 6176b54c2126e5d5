//! One step of a history, in small numbers, so that shrinking makes them smaller.

use proptest::prelude::*;

#[derive(Clone, Debug)]
pub enum Op {
    Allocate {
        worker: u8,
    },
    Enter {
        life: u8,
        phase: u8,
    },
    Replace {
        life: u8,
    },
    Store {
        life: u8,
        tier: u8,
        prompt: u8,
        from: u8,
        to: u8,
    },
    Remove {
        life: u8,
        tier: u8,
        prompt: u8,
        from: u8,
        to: u8,
    },
    Offload {
        life: u8,
        tier: u8,
        prompt: u8,
        to: u8,
    },
    Clear {
        life: u8,
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
        4 => any::<(u8, u8)>().prop_map(|(life, phase)| Op::Enter { life, phase }),
        1 => any::<u8>().prop_map(|life| Op::Replace { life }),
        12 => any::<(u8, u8, u8, u8, u8)>().prop_map(|(life, tier, prompt, from, to)| {
            Op::Store { life, tier, prompt, from, to }
        }),
        6 => any::<(u8, u8, u8, u8, u8)>().prop_map(|(life, tier, prompt, from, to)| {
            Op::Remove { life, tier, prompt, from, to }
        }),
        2 => any::<(u8, u8, u8, u8)>()
            .prop_map(|(life, tier, prompt, to)| Op::Offload { life, tier, prompt, to }),
        1 => any::<(u8, u8)>().prop_map(|(life, tier)| Op::Clear { life, tier }),
        2 => any::<u8>().prop_map(|budget| Op::Sweep { budget }),
        4 => any::<(u8, u8, bool)>().prop_map(|(prompt, limit, exact)| {
            Op::Find { prompt, limit, exact }
        }),
    ];
    prop::collection::vec(op, 0..120)
}
