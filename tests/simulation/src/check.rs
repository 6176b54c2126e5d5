//! The invariants. At any time no worker is credited with more than its engine held a little while ago. After the faults
//! every replica knows exactly what every engine holds.

use kvatlas_engines::Tier;
use kvatlas_mirror::TierDigest;
use kvatlas_wire::v1;

use crate::engine::{Engine, TIERS};
use crate::plan::STALE_MS_MAX;
use crate::publisher::Publisher;
use crate::record;
use crate::replica::Replica;
use crate::tree::{Set, Tree, blocks};

/// A violated invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Time in ms since the beginning of the run.
    pub at_ms: u64,
    /// Description.
    pub what: String,
}

/// Checks that no whole set ever differed from its publisher's digest.
///
/// # Errors
/// The number of differing digests.
pub fn no_digest_differs(replica: &Replica, name: usize) -> Result<(), String> {
    match replica.digests_mismatched() {
        0 => Ok(()),
        count => Err(format!("replica {name} found {count} digests that differ")),
    }
}

/// Checks that evicted workers hold no block and count no event as applied. A set that lacks skipped events is not the
/// effect of any event, and a replica that starts from it must not believe so.
///
/// # Errors
/// The worker that does.
pub fn evicted_claim_nothing(replica: &Replica, name: usize) -> Result<(), String> {
    let mut infos = replica.evicted().filter_map(|worker| replica.info(worker));
    let claims = infos.find(|info| {
        let is_out = info.state == i32::from(v1::WorkerState::OverBudget);
        is_out && (info.blocks, info.last_event_id) != (0, 0)
    });
    claims.map_or(Ok(()), |info| {
        Err(format!(
            "replica {name} has evicted a worker, and lists {info:?}"
        ))
    })
}

/// Checks that a prompt's matches are true, or were true a little while ago.
///
/// # Errors
/// The worker that is credited with too much.
pub fn credits_are_true(
    replica: &mut Replica,
    name: usize,
    (engines, publishers): (&[Engine], &[Publisher]),
    tree: &Tree,
    block: usize,
) -> Result<(), String> {
    let Some(since_ms) = replica.moment_before(STALE_MS_MAX) else {
        return Ok(()); // it has not read the logs' heads for that long yet
    };
    let prompt = tree.prompt(block);
    let hashes: Vec<u64> = prompt.iter().map(|&block| tree.hashes[block]).collect();
    for (worker, depth) in replica.find(&hashes, false) {
        let own = publishers
            .iter()
            .filter(|publisher| publisher.worker == worker);
        let held =
            own.map(|publisher| engines[publisher.engine].depth_since(tree, &prompt, since_ms));
        let held = held.max().unwrap_or_default();
        if depth > held {
            return Err(format!(
                "replica {name} credits worker {worker} with {depth} blocks of the prompt to {block}; since {since_ms} it held {held} at most"
            ));
        }
    }
    Ok(())
}

/// The publisher that a worker is followed by, and the set that replicas must know.
#[derive(Clone, Copy)]
struct ActivePublisher<'a> {
    publisher: &'a Publisher,
    /// The part of its engine's cache that it can know and a prompt can reach, by tier.
    truth: [Set; TIERS],
    /// Whether a publisher that is silent now opened a higher epoch. A replica that has seen it follows nobody.
    is_contested: bool,
}

fn active_publisher<'a>(
    worker: u64,
    (engines, publishers): (&[Engine], &'a [Publisher]),
    tree: &Tree,
) -> Option<ActivePublisher<'a>> {
    let all = || {
        publishers
            .iter()
            .filter(|publisher| publisher.worker == worker)
    };
    let is_active = |publisher: &&Publisher| {
        engines[publisher.engine].is_up
            && publisher.is_up
            && !publisher.has_left
            && publisher.epoch().is_some()
    };
    let publisher = all()
        .filter(is_active)
        .max_by_key(|publisher| publisher.epoch())?;
    let epoch = publisher.epoch().unwrap_or_default();
    let known = publisher.knowable(&engines[publisher.engine], tree);
    Some(ActivePublisher {
        publisher,
        truth: known.reachable(tree),
        is_contested: all().any(|publisher| publisher.highest_epoch() > epoch),
    })
}

/// Checks that the mirrors of active publishers publish exactly what they can know.
///
/// # Errors
/// The worker whose mirror differs.
pub fn mirrors_are_exact(
    workers: usize,
    (engines, publishers): (&[Engine], &[Publisher]),
    tree: &Tree,
) -> Result<(), String> {
    for worker in 0..workers as u64 {
        let Some(active) = active_publisher(worker, (engines, publishers), tree) else {
            continue;
        };
        let mirror = active
            .publisher
            .open_epoch
            .as_ref()
            .map(|open_epoch| &open_epoch.mirror.mirror);
        let published = mirror.map(|mirror| record::digests(mirror.digests()));
        let held = record::digests(digests(active.truth, tree));
        if published.as_ref() != Some(&held) {
            return Err(format!(
                "the mirror of worker {worker} publishes {published:?}, its engine holds {held:?}"
            ));
        }
    }
    Ok(())
}

/// Checks that a replica knows exactly what all engines hold, including workers that were evicted for a while.
///
/// # Errors
/// The difference.
pub fn replica_is_exact(
    replica: &mut Replica,
    name: usize,
    workers: usize,
    sources: (&[Engine], &[Publisher]),
    tree: &Tree,
) -> Result<(), String> {
    if !replica.is_ready() {
        return Err(format!("replica {name} is not ready"));
    }
    no_digest_differs(replica, name)?;
    let mut held: Vec<(u64, Set)> = Vec::new();
    for worker in 0..workers as u64 {
        let active = active_publisher(worker, sources, tree);
        if let Some(active) = listed(replica, name, worker, active, tree)? {
            let all = active.truth.into_iter().fold(0, |all, tier| all | tier);
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

/// Checks how a worker is listed; returns its publisher if it is matched.
fn listed<'a>(
    replica: &Replica,
    name: usize,
    worker: u64,
    active: Option<ActivePublisher<'a>>,
    tree: &Tree,
) -> Result<Option<ActivePublisher<'a>>, String> {
    let status = replica.cell.status();
    let found = status.workers.into_iter().find(|status| {
        let key = status.info.as_ref().and_then(|info| info.worker);
        key.is_some_and(|key| key.worker_id == worker)
    });
    let info = found.as_ref().and_then(|found| found.info.as_ref());
    let is_live = info.is_some_and(|info| info.state == i32::from(v1::WorkerState::Live));
    let may_be_silent = active.as_ref().is_none_or(|active| active.is_contested);
    let (Some(active), true) = (active.as_ref(), is_live) else {
        return if may_be_silent && !is_live {
            Ok(None)
        } else {
            let epoch = active.map(|active| active.publisher.epoch());
            Err(format!(
                "replica {name} has worker {worker}, whose publisher has epoch {epoch:?}, as {info:?}"
            ))
        };
    };
    let epoch = info.map(|info| info.epoch);
    if epoch != active.publisher.epoch() {
        return Err(format!(
            "replica {name} has worker {worker} in epoch {epoch:?}, not {:?}",
            active.publisher.epoch()
        ));
    }
    let theirs = record::digests(digests(active.truth, tree));
    let theirs: Vec<_> = theirs.into_iter().filter(|tier| tier.blocks > 0).collect();
    let ours = found.as_ref().map(|found| &found.digests[..]);
    let ours = ours.unwrap_or_default();
    if !ours.iter().filter(|tier| tier.blocks > 0).eq(&theirs) {
        return Err(format!(
            "replica {name} has of worker {worker} {ours:?}, its engine {theirs:?}"
        ));
    }
    Ok(Some(*active))
}

/// Number and XOR of the sequence hashes of sets of blocks.
fn digests(sets: [Set; TIERS], tree: &Tree) -> [TierDigest; Tier::COUNT] {
    let mut digests = [TierDigest::default(); Tier::COUNT];
    for (digest, set) in digests.iter_mut().zip(sets) {
        digest.blocks = u64::from(set.count_ones());
        digest.digest = blocks(set).fold(0, |xor, block| xor ^ tree.hashes[block]);
    }
    digests
}
