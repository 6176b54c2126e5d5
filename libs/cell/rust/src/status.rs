//! The replica's status for `GetStatus`, and the gauges of the metrics page.

use std::collections::{BTreeMap, HashMap};

use kvatlas_events::sequencer::TierDigest;
use kvatlas_index::{Index, Tier};
use kvatlas_wire::v1;

use crate::config::CellConfig;
use crate::counters::Counters;
use crate::workers::table::WorkerTable;

/// The whole status of the replica.
pub(crate) fn status(
    config: &CellConfig,
    counters: &Counters,
    index: &Index,
    table: &WorkerTable,
    ready: bool,
) -> v1::GetStatusResponse {
    let workers = table.listed().map(|worker| v1::WorkerStatus {
        info: Some(worker.info(index, &table.logs)),
        instance_id: worker.sequencer.incarnation().instance,
        digests: named_digests(worker.set.digests(index)),
        events_held_back: worker.sequencer.held_back_events(),
        incomplete: worker.is_incomplete(),
    });
    let logs = table.logs.all().iter().map(|log| v1::LogStatus {
        transport: log.transport.clone(),
        alive: log.alive,
        records: log.records,
        lag_ms: log.lag_ms,
    });
    let counters = counters.read();
    v1::GetStatusResponse {
        replica_id: config.replica_id.clone(),
        version: config.version.clone(),
        cell: config.cell.clone(),
        model: config.model.clone(),
        block_size: config.block_size,
        hash_contract: config.hash_contract.clone(),
        ready,
        workers: workers.collect(),
        memberships: index.memberships(),
        index_bytes: index.memory_bytes().total() as u64,
        counters: counters
            .map(|(name, value)| (name.to_owned(), value))
            .collect::<HashMap<_, _>>(),
        logs: logs.collect(),
    }
}

/// Gauges by name; labels as in the counters' names.
pub(crate) fn gauges(index: &Index, table: &WorkerTable, ready: bool) -> BTreeMap<String, u64> {
    let memory = index.memory_bytes();
    let mut gauges = BTreeMap::from([
        ("ready".to_owned(), u64::from(ready)),
        ("memberships".to_owned(), index.memberships()),
    ]);
    for (part, bytes) in [
        ("tables", memory.tables),
        ("bitmaps", memory.bitmaps),
        ("fixed", memory.fixed),
        ("idle", memory.idle),
        ("retired", memory.retired),
    ] {
        gauges.insert(format!("index_bytes{{part=\"{part}\"}}"), bytes as u64);
    }
    let mut states = BTreeMap::from(["live", "recovering", "stale", "over_budget"].map(|s| (s, 0)));
    let (mut recoveries_running, mut held_back) = (0, 0);
    for worker in table.listed() {
        let state = match worker.state() {
            v1::WorkerState::Live => "live",
            v1::WorkerState::Recovering => "recovering",
            v1::WorkerState::OverBudget => "over_budget",
            v1::WorkerState::Stale | v1::WorkerState::Unspecified => "stale",
        };
        *states.entry(state).or_default() += 1;
        let runs = state == "recovering" && !worker.sequencer.given_up();
        recoveries_running += u64::from(runs);
        held_back += worker.sequencer.held_back_events();
    }
    for (state, workers) in states {
        gauges.insert(format!("workers{{state=\"{state}\"}}"), workers);
    }
    gauges.insert("recoveries_running".to_owned(), recoveries_running);
    gauges.insert("events_held_back".to_owned(), held_back);
    for log in table.logs.all() {
        let label = format!("{{transport=\"{}\"}}", log.transport);
        gauges.insert(format!("log_alive{label}"), log.alive.into());
        gauges.insert(format!("log_records{label}"), log.records);
        gauges.insert(format!("log_lag_ms{label}"), log.lag_ms);
    }
    gauges
}

/// The digests of tiers that hold blocks.
fn named_digests(digests: [TierDigest; 4]) -> Vec<v1::TierDigest> {
    let tiers = Tier::ALL.iter().zip(digests);
    tiers
        .filter(|(_, digest)| digest.blocks > 0)
        .map(|(&tier, digest)| v1::TierDigest {
            tier: tier as i32 + 1,
            blocks: digest.blocks,
            digest: digest.digest,
        })
        .collect()
}
