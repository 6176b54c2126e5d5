//! Checks an index's answers: compares sampled prompts with nested dictionaries that played the same stream.
//!
//! The dictionaries are the simplest design and share no code with the flat index. A fifth of the prompts
//! begin with the blocks of another prompt, so that a block's own hash matches and its prefix does not.

use kvatlas_baselines::Answer;
use kvatlas_baselines::design::Matching;
use kvatlas_baselines::designs::nested_dict::NestedDict;
use kvatlas_baselines::sharing::locked::Exclusive;
use kvatlas_baselines::stream::{Op, OpStream};

use crate::index::engine::mix;
use crate::index::target::{Scratch, Target};

/// Compares `count` answers, each of at most `limit` workers if that is not 0; how many were compared.
///
/// # Errors
/// The first difference, in one line.
pub fn verify(
    stream: &OpStream,
    target: &dyn Target,
    count: u64,
    limit: usize,
) -> Result<u64, String> {
    let prompts: Vec<&[u64]> = stream
        .records()
        .filter_map(|record| match record.op {
            Op::Query(chunks) => Some(chunks),
            _ => None,
        })
        .collect();
    if prompts.is_empty() {
        return Err("the stream has no query to verify".to_owned());
    }
    let oracle = oracle(stream);
    let draw = |number: u64, of: usize| (mix(number) % of.max(1) as u64) as usize;
    let (mut scratch, mut answer) = (Scratch::default(), Answer::default());
    for number in 0..count {
        let place = draw(4 * number, prompts.len());
        let mut prompt = prompts[place].to_vec();
        let spliced = number % 5 == 4;
        if spliced {
            let other = prompts[draw(4 * number + 1, prompts.len())];
            let head = draw(4 * number + 2, prompt.len().min(other.len())) + 1;
            let head = head.min(prompt.len()).min(other.len());
            prompt[..head].copy_from_slice(&other[..head]);
        }
        oracle.find(&prompt, &mut answer);
        let mut right: Vec<_> = answer.matches.iter().map(|m| (m.worker, m.depth)).collect();
        right.sort_unstable();
        target.find(&mut scratch, &prompt);
        let found = target.found(&scratch);
        if !agree(&found, &right, limit) {
            return Err(difference(place, spliced, &found, &right));
        }
    }
    Ok(count)
}

/// The dictionaries, after the whole stream.
fn oracle(stream: &OpStream) -> NestedDict {
    let mut oracle = NestedDict::new(Matching::Verified);
    for record in stream.records() {
        match record.op {
            Op::Query(_) => {}
            Op::Store { parent, chunks } => oracle.store(record.worker, parent, chunks),
            Op::Remove(hashes) => oracle.remove(record.worker, hashes),
        }
    }
    oracle
}

/// Without a limit both are equal. With one, all that was found is right, and nothing that was left out
/// is deeper; which of equally deep workers are named is the index's choice.
fn agree(found: &[(u32, u32)], right: &[(u32, u32)], limit: usize) -> bool {
    if limit == 0 || right.len() <= limit {
        return found == right;
    }
    let depths = |answer: &[(u32, u32)]| {
        let mut depths: Vec<u32> = answer.iter().map(|&(_, depth)| depth).collect();
        depths.sort_unstable_by(|a, b| b.cmp(a));
        depths
    };
    found.len() == limit
        && found.windows(2).all(|pair| pair[0] < pair[1])
        && found.iter().all(|pair| right.binary_search(pair).is_ok())
        && depths(found) == depths(right)[..limit]
}

fn difference(query: usize, spliced: bool, found: &[(u32, u32)], right: &[(u32, u32)]) -> String {
    let how = if spliced { ", spliced" } else { "" };
    let missing = right.iter().find(|pair| !found.contains(pair));
    let wrong = found.iter().find(|pair| !right.contains(pair));
    let told = |pair: Option<&(u32, u32)>| {
        pair.map_or("none".to_owned(), |(worker, depth)| {
            format!("worker {worker} at depth {depth}")
        })
    };
    format!(
        "wrong answer to query {query}{how}: {} workers found, {} are right; missing: {}; wrong: {}",
        found.len(),
        right.len(),
        told(missing),
        told(wrong),
    )
}
