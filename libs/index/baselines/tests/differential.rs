//! Every exact design against the definition, over random prefix-closed histories, with shrinking.
//!
//! Prompts consist of few chunk hashes, so that equal chunks follow different prefixes, paths of a tree split and join, and one
//! position has several sequences. A history ends with everything removed; then no design may name a worker.

mod common;

use common::fleet::Fleet;
use kvatlas_baselines::catalogue::DESIGNS;
use proptest::prelude::*;

const WORKERS: u32 = 7;
const PROMPTS: usize = 12;
const DEPTH: usize = 30;

/// One step, in small numbers, so that shrinking makes them smaller.
#[derive(Clone, Debug)]
enum Op {
    /// Stores blocks up to `to`, beginning at `from` or before, as far as that is possible.
    Store {
        worker: u32,
        prompt: usize,
        from: usize,
        to: usize,
    },
    Remove {
        worker: u32,
        prompt: usize,
        at: usize,
    },
    Clear {
        worker: u32,
    },
    Find {
        prompt: usize,
        blocks: usize,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let store =
        (0..WORKERS, 0..PROMPTS, 0..DEPTH, 0..=DEPTH).prop_map(|(worker, prompt, from, to)| {
            Op::Store {
                worker,
                prompt,
                from,
                to,
            }
        });
    let remove = (0..WORKERS, 0..PROMPTS, 0..DEPTH).prop_map(|(worker, prompt, at)| Op::Remove {
        worker,
        prompt,
        at,
    });
    let clear = (0..WORKERS).prop_map(|worker| Op::Clear { worker });
    let find = (0..PROMPTS, 0..=DEPTH).prop_map(|(prompt, blocks)| Op::Find { prompt, blocks });
    let op = prop_oneof![12 => store, 6 => remove, 1 => clear, 4 => find];
    prop::collection::vec(op, 0..80)
}

/// Prompts over three chunk hashes: each shares a prefix with an earlier one.
fn prompts() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let one = (
        any::<prop::sample::Index>(),
        0..DEPTH,
        prop::collection::vec(1u64..4, DEPTH),
    );
    prop::collection::vec(one, PROMPTS).prop_map(|parts| {
        let mut prompts: Vec<Vec<u64>> = Vec::new();
        for (earlier, shared, own) in parts {
            let prompt = match prompts.len() {
                0 => own,
                count => [&prompts[earlier.index(count)][..shared], &own[shared..]].concat(),
            };
            prompts.push(prompt);
        }
        prompts
    })
}

fn play(fleet: &mut Fleet, prompts: &[Vec<u64>], op: &Op) {
    match *op {
        Op::Store {
            worker,
            prompt,
            from,
            to,
        } => {
            let chunks = &prompts[prompt];
            let hashes = common::model::sequence_hashes(chunks);
            let from = from.min(fleet.model.depth(worker, &hashes));
            fleet.store(worker, chunks, from, to.max(from));
        }
        Op::Remove { worker, prompt, at } => fleet.remove(worker, &prompts[prompt], at),
        Op::Clear { worker } => fleet.clear(worker),
        Op::Find { prompt, blocks } => fleet.compare(&prompts[prompt][..blocks]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn prefix_closed_histories_give_the_definitions_answers(prompts in prompts(), ops in ops()) {
        let mut fleet = Fleet::new(DESIGNS.iter().copied().filter(|design| design.exact));
        for op in &ops {
            play(&mut fleet, &prompts, op);
        }
        for prompt in &prompts {
            fleet.compare(prompt);
        }
        for (worker, prompt) in (0..WORKERS).flat_map(|worker| prompts.iter().map(move |p| (worker, p))) {
            fleet.remove(worker, prompt, 0);
        }
        for prompt in &prompts {
            fleet.compare(prompt);
            prop_assert!(fleet.model.find(prompt).is_empty());
        }
        for (name, index) in &fleet.indexes {
            prop_assert_eq!(index.refused(), 0, "{}", name);
        }
    }
}
