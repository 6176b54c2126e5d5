//! What must hold: at any time no worker is credited with more than its engine held a little while ago;
//! after quiet, every replica knows exactly what every engine holds.

use kvatlas_wire::v1;

use crate::engine::Engine;
use crate::plan::STALE_MS_MAX;
use crate::publisher::Publisher;
use crate::record::digests;
use crate::replica::Replica;
use crate::tree::Tree;

/// What did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// When, in ms since the run's beginning.
    pub at_ms: u64,
    /// What, in words.
    pub what: String,
}

/// Whether a prompt's matches are true, or were not so long ago.
///
/// # Errors
/// Who is credited with what.
pub fn credits(
    replica: &mut Replica,
    name: usize,
    engines: &[Engine],
    tree: &Tree,
    block: usize,
) -> Result<(), String> {
    let Some(since_ms) = replica.moment_before(STALE_MS_MAX) else {
        return Ok(()); // it has not yet read the log's head for so long
    };
    let prompt = tree.prompt(block);
    let hashes: Vec<u64> = prompt.iter().map(|&block| tree.hashes[block]).collect();
    for (worker, depth) in replica.find(&hashes, false) {
        let held = engines[worker as usize].depth_since(tree, &prompt, since_ms);
        if depth > held {
            return Err(format!(
                "replica {name} credits worker {worker} with {depth} blocks of the prompt to {block}; since {since_ms} it held {held} at most"
            ));
        }
    }
    Ok(())
}

/// Whether a replica knows exactly what all engines hold.
///
/// # Errors
/// What it has wrong.
pub fn healed(
    replica: &mut Replica,
    name: usize,
    engines: &[Engine],
    publishers: &[Publisher],
    tree: &Tree,
) -> Result<(), String> {
    if !replica.is_ready() {
        return Err(format!("replica {name} is not ready"));
    }
    let status = replica.cell.status();
    let pairs = || engines.iter().zip(publishers).enumerate();
    for (worker, (engine, publisher)) in pairs() {
        let speaks = engine.up && publisher.up && !publisher.left;
        let listed = status.workers.iter().find(|status| {
            let key = status.info.as_ref().and_then(|info| info.worker);
            key.is_some_and(|key| key.worker_id == worker as u64)
        });
        let state = listed.and_then(|listed| listed.info.as_ref());
        let is_live = state.is_some_and(|info| info.state == i32::from(v1::WorkerState::Live));
        if is_live != speaks {
            return Err(format!(
                "replica {name} has worker {worker}, which speaks: {speaks}, as {state:?}"
            ));
        }
        let Some(listed) = listed.filter(|_| speaks) else {
            continue;
        };
        let epoch = state.map(|info| info.epoch);
        if epoch != publisher.epoch() {
            return Err(format!(
                "replica {name} has worker {worker} in epoch {epoch:?}, not {:?}",
                publisher.epoch()
            ));
        }
        let theirs = digests(engine.truth(tree), tree);
        let named = listed.digests.iter().filter(|digest| digest.blocks > 0);
        if !named.eq(&theirs) {
            return Err(format!(
                "replica {name} has of worker {worker} {:?}, its engine {theirs:?}",
                listed.digests
            ));
        }
    }
    for block in 0..tree.len() {
        let prompt = tree.prompt(block);
        let hashes: Vec<u64> = prompt.iter().map(|&block| tree.hashes[block]).collect();
        let expected = pairs()
            .filter(|(_, (engine, publisher))| engine.up && publisher.up && !publisher.left)
            .map(|(worker, (engine, _))| {
                let held = engine
                    .truth(tree)
                    .into_iter()
                    .fold(0, |all, tier| all | tier);
                (worker as u64, tree.depth(&prompt, held))
            })
            .filter(|&(_, depth)| depth > 0)
            .collect();
        for exact in [false, true] {
            let found = replica.find(&hashes, exact);
            if found != expected {
                return Err(format!(
                    "replica {name} finds {found:?} for the prompt to {block} (exact: {exact}), the engines hold {expected:?}"
                ));
            }
        }
    }
    Ok(())
}
