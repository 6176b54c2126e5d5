//! What must hold: at any time no worker is credited with more than its engine held a little while ago;
//! after quiet, every replica knows exactly what every engine holds.

use kvatlas_mirror::TierDigest;
use kvatlas_wire::v1;

use crate::engine::{Engine, TIERS};
use crate::plan::STALE_MS_MAX;
use crate::publisher::Publisher;
use crate::record;
use crate::replica::Replica;
use crate::tree::{Set, Tree, blocks};

/// What did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// When, in ms since the run's beginning.
    pub at_ms: u64,
    /// What, in words.
    pub what: String,
}

/// Whether no set that was taken for whole differed from what its publisher said at the same event.
///
/// # Errors
/// How often that was not so.
pub fn unmistaken(replica: &Replica, name: usize) -> Result<(), String> {
    match replica.digests_mismatched() {
        0 => Ok(()),
        count => Err(format!("replica {name} found {count} digests that differ")),
    }
}

/// Whether workers that are out for lack of memory hold nothing and claim nothing: a set that lacks what was passed
/// over is not the effect of any event, and whoever starts from it must not take it for that.
///
/// # Errors
/// Which of them does.
pub fn modest(replica: &Replica, name: usize) -> Result<(), String> {
    let mut infos = replica.put_out().filter_map(|worker| replica.info(worker));
    let claims = infos.find(|info| {
        let is_out = info.state == i32::from(v1::WorkerState::OverBudget);
        is_out && (info.blocks, info.last_event_id) != (0, 0)
    });
    claims.map_or(Ok(()), |info| {
        Err(format!("replica {name} has put out a worker, as {info:?}"))
    })
}

/// Whether a prompt's matches are true, or were not so long ago.
///
/// # Errors
/// Who is credited with what.
pub fn credits(
    replica: &mut Replica,
    name: usize,
    (engines, publishers): (&[Engine], &[Publisher]),
    tree: &Tree,
    block: usize,
) -> Result<(), String> {
    let Some(since_ms) = replica.moment_before(STALE_MS_MAX) else {
        return Ok(()); // it has not yet read the log's head for so long
    };
    let prompt = tree.prompt(block);
    let hashes: Vec<u64> = prompt.iter().map(|&block| tree.hashes[block]).collect();
    for (worker, depth) in replica.find(&hashes, false) {
        let voices = publishers.iter().filter(|voice| voice.worker == worker);
        let held = voices.map(|voice| engines[voice.engine].depth_since(tree, &prompt, since_ms));
        let held = held.max().unwrap_or_default();
        if depth > held {
            return Err(format!(
                "replica {name} credits worker {worker} with {depth} blocks of the prompt to {block}; since {since_ms} it held {held} at most"
            ));
        }
    }
    Ok(())
}

/// Who speaks for a worker, and what is then to be known of it.
#[derive(Clone, Copy)]
struct Voice<'a> {
    publisher: &'a Publisher,
    /// Of its engine, what it can know and a prompt can reach, by tier.
    truth: [Set; TIERS],
    /// Somebody opened a higher epoch and is silent now: who has heard of it believes nobody.
    is_contested: bool,
}

fn voice_of<'a>(
    worker: u64,
    (engines, publishers): (&[Engine], &'a [Publisher]),
    tree: &Tree,
) -> Option<Voice<'a>> {
    let all = || publishers.iter().filter(|voice| voice.worker == worker);
    let speaks = |voice: &&Publisher| {
        engines[voice.engine].up && voice.up && !voice.left && voice.epoch().is_some()
    };
    let publisher = all().filter(speaks).max_by_key(|voice| voice.epoch())?;
    let epoch = publisher.epoch().unwrap_or_default();
    let known = publisher.knowable(&engines[publisher.engine], tree);
    Some(Voice {
        publisher,
        truth: known.reachable(tree),
        is_contested: all().any(|voice| voice.highest_epoch() > epoch),
    })
}

/// Whether the mirrors that speak publish exactly what they can know.
///
/// # Errors
/// Whose does not.
pub fn mirrored(
    workers: usize,
    (engines, publishers): (&[Engine], &[Publisher]),
    tree: &Tree,
) -> Result<(), String> {
    for worker in 0..workers as u64 {
        let Some(voice) = voice_of(worker, (engines, publishers), tree) else {
            continue;
        };
        let mirror = voice
            .publisher
            .life
            .as_ref()
            .map(|life| &life.mirror.mirror);
        let said = mirror.map(|mirror| record::digests(mirror.digests()));
        let held = record::digests(digests(voice.truth, tree));
        if said.as_ref() != Some(&held) {
            return Err(format!(
                "the mirror of worker {worker} publishes {said:?}, its engine holds {held:?}"
            ));
        }
    }
    Ok(())
}

/// Whether a replica knows exactly what all engines hold, those included that had no room for a while.
///
/// # Errors
/// What it has wrong.
pub fn healed(
    replica: &mut Replica,
    name: usize,
    workers: usize,
    voices: (&[Engine], &[Publisher]),
    tree: &Tree,
) -> Result<(), String> {
    if !replica.is_ready() {
        return Err(format!("replica {name} is not ready"));
    }
    unmistaken(replica, name)?;
    let mut held: Vec<(u64, Set)> = Vec::new();
    for worker in 0..workers as u64 {
        let voice = voice_of(worker, voices, tree);
        if let Some(voice) = listed(replica, name, worker, voice, tree)? {
            let all = voice.truth.into_iter().fold(0, |all, tier| all | tier);
            held.push((worker, all));
        }
    }
    for block in 0..tree.len() {
        let prompt = tree.prompt(block);
        let hashes: Vec<u64> = prompt.iter().map(|&block| tree.hashes[block]).collect();
        let expected = held
            .iter()
            .map(|&(worker, held)| (worker, tree.depth(&prompt, held)))
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

/// Whether a worker is listed as it should be; returns who it is known by, if it matches.
fn listed<'a>(
    replica: &Replica,
    name: usize,
    worker: u64,
    voice: Option<Voice<'a>>,
    tree: &Tree,
) -> Result<Option<Voice<'a>>, String> {
    let status = replica.cell.status();
    let found = status.workers.into_iter().find(|status| {
        let key = status.info.as_ref().and_then(|info| info.worker);
        key.is_some_and(|key| key.worker_id == worker)
    });
    let info = found.as_ref().and_then(|found| found.info.as_ref());
    let is_live = info.is_some_and(|info| info.state == i32::from(v1::WorkerState::Live));
    let may_be_silent = voice.as_ref().is_none_or(|voice| voice.is_contested);
    let (Some(voice), true) = (voice.as_ref(), is_live) else {
        return if may_be_silent && !is_live {
            Ok(None)
        } else {
            let speaks = voice.map(|voice| voice.publisher.epoch());
            Err(format!(
                "replica {name} has worker {worker}, which speaks in {speaks:?}, as {info:?}"
            ))
        };
    };
    let epoch = info.map(|info| info.epoch);
    if epoch != voice.publisher.epoch() {
        return Err(format!(
            "replica {name} has worker {worker} in epoch {epoch:?}, not {:?}",
            voice.publisher.epoch()
        ));
    }
    let theirs = record::digests(digests(voice.truth, tree));
    let theirs: Vec<_> = theirs.into_iter().filter(|tier| tier.blocks > 0).collect();
    let ours = found.as_ref().map(|found| &found.digests[..]);
    let ours = ours.unwrap_or_default();
    if !ours.iter().filter(|tier| tier.blocks > 0).eq(&theirs) {
        return Err(format!(
            "replica {name} has of worker {worker} {ours:?}, its engine {theirs:?}"
        ));
    }
    Ok(Some(*voice))
}

/// Number and XOR of the sequence hashes of sets of blocks.
fn digests(sets: [Set; TIERS], tree: &Tree) -> [TierDigest; kvatlas_mirror::TIERS.len()] {
    let mut digests = [TierDigest::default(); kvatlas_mirror::TIERS.len()];
    for (digest, set) in digests.iter_mut().zip(sets) {
        digest.blocks = u64::from(set.count_ones());
        digest.digest = blocks(set).fold(0, |xor, block| xor ^ tree.hashes[block]);
    }
    digests
}
