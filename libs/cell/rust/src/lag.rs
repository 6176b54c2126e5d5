//! Who is behind, by how many events and for how long: the figures an operator looks at first.

use kvatlas_index::WorkerKey;

use crate::cell::Cell;

/// One worker that is behind what is known to exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lag {
    /// Who.
    pub key: WorkerKey,
    /// Events that exist and are not applied.
    pub events: u64,
    /// How long nothing of them has been applied.
    pub ms: u64,
}

/// How far the workers are behind.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Lags {
    /// The furthest behind by events, at most as many as were asked for.
    pub most: Vec<Lag>,
    /// Workers that are behind at all.
    pub workers: u64,
    /// Events of all of them.
    pub events: u64,
    /// The longest time of any of them.
    pub ms_max: u64,
}

impl Cell {
    /// The workers that are behind; of each one's figures at most `limit`, so that a page of metrics
    /// stays as short however many there are.
    #[must_use]
    pub fn lags(&self, limit: usize, now_ms: u64) -> Lags {
        let mut most: Vec<Lag> = self.with_table(|table| {
            let listed = table.workers.values().filter(|worker| worker.is_listed());
            listed
                .filter_map(|worker| {
                    let (events, since_ms) = worker.sequencer.lag()?;
                    Some(Lag {
                        key: worker.key,
                        events,
                        ms: since_ms.map_or(0, |since| now_ms.saturating_sub(since)),
                    })
                })
                .collect()
        });
        let lags = Lags {
            workers: most.len() as u64,
            events: most.iter().map(|lag| lag.events).sum(),
            ms_max: most.iter().map(|lag| lag.ms).max().unwrap_or_default(),
            most: Vec::new(),
        };
        most.sort_by_key(|lag| (std::cmp::Reverse(lag.events), lag.key));
        most.truncate(limit);
        Lags { most, ..lags }
    }
}
