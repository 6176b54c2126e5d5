//! What the cell tells of itself: `GetStatus`, and the gauges of the metrics page.

use std::collections::{BTreeMap, HashMap};

use kvatlas_index::Tier;
use kvatlas_wire::v1;
use prost::Message as _;

use crate::cell::Cell;

impl Cell {
    /// The whole status of the replica.
    #[must_use]
    pub fn status(&self) -> v1::GetStatusResponse {
        let index = self.index();
        let (workers, logs) = self.with_table(|table| {
            let listed = table.workers.values().filter(|worker| worker.is_listed());
            let workers = listed.map(|worker| v1::WorkerStatus {
                info: Some(worker.info(index, &table.logs)),
                instance_id: worker.sequencer.speaker().instance,
                digests: named_digests(worker.digests(index)),
                events_held_back: worker.sequencer.held_back_events(),
                incomplete: worker.is_incomplete(),
            });
            let logs = table.logs.all().iter().map(|log| v1::LogStatus {
                transport: log.transport.clone(),
                alive: log.alive,
                records: log.records,
                lag_ms: log.lag_ms,
            });
            (workers.collect(), logs.collect())
        });
        let config = &self.config;
        v1::GetStatusResponse {
            replica_id: config.replica_id.clone(),
            version: config.version.clone(),
            cell: config.cell.clone(),
            model: config.model.clone(),
            block_size: config.block_size,
            hash_contract: config.hash_contract.clone(),
            ready: self.is_ready(),
            workers,
            memberships: index.memberships(),
            index_bytes: index.memory_bytes().total() as u64,
            counters: self
                .counters
                .read()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<HashMap<_, _>>(),
            logs,
        }
    }

    /// [`Self::status`], encoded.
    #[must_use]
    pub fn encoded_status(&self) -> Vec<u8> {
        self.status().encode_to_vec()
    }

    /// What rises and falls, by name; labels as in the counters' names.
    #[must_use]
    pub fn gauges(&self) -> BTreeMap<String, u64> {
        let index = self.index();
        let memory = index.memory_bytes();
        let mut gauges = BTreeMap::from([
            ("ready".to_owned(), u64::from(self.is_ready())),
            ("memberships".to_owned(), index.memberships()),
            (
                "index_bytes{part=\"tables\"}".to_owned(),
                memory.tables as u64,
            ),
            (
                "index_bytes{part=\"bitmaps\"}".to_owned(),
                memory.bitmaps as u64,
            ),
            (
                "index_bytes{part=\"fixed\"}".to_owned(),
                memory.fixed as u64,
            ),
            ("index_bytes{part=\"idle\"}".to_owned(), memory.idle as u64),
            (
                "index_bytes{part=\"retired\"}".to_owned(),
                memory.retired as u64,
            ),
        ]);
        self.with_table(|table| {
            for state in ["live", "recovering", "stale", "over_budget"] {
                gauges.insert(format!("workers{{state=\"{state}\"}}"), 0);
            }
            let (mut recovering, mut held_back) = (0, 0);
            for worker in table.workers.values().filter(|worker| worker.is_listed()) {
                let state = match worker.state() {
                    v1::WorkerState::Live => "live",
                    v1::WorkerState::Recovering => "recovering",
                    v1::WorkerState::OverBudget => "over_budget",
                    v1::WorkerState::Stale | v1::WorkerState::Unspecified => "stale",
                };
                *gauges
                    .entry(format!("workers{{state=\"{state}\"}}"))
                    .or_default() += 1;
                let waits = state == "recovering" && !worker.sequencer.given_up();
                recovering += u64::from(waits);
                held_back += worker.sequencer.held_back_events();
            }
            gauges.insert("recoveries_running".to_owned(), recovering);
            gauges.insert("events_held_back".to_owned(), held_back);
            for log in table.logs.all() {
                let name = &log.transport;
                gauges.insert(
                    format!("log_alive{{transport=\"{name}\"}}"),
                    log.alive.into(),
                );
                gauges.insert(format!("log_records{{transport=\"{name}\"}}"), log.records);
                gauges.insert(format!("log_lag_ms{{transport=\"{name}\"}}"), log.lag_ms);
            }
        });
        gauges
    }
}

fn named_digests(digests: [kvatlas_events::sequencer::Digest; 4]) -> Vec<v1::TierDigest> {
    let named = Tier::ALL
        .iter()
        .zip(digests)
        .filter(|(_, digest)| digest.blocks > 0);
    named
        .map(|(&tier, digest)| v1::TierDigest {
            tier: tier as i32 + 1,
            blocks: digest.blocks,
            digest: digest.xor,
        })
        .collect()
}
