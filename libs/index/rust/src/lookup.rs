//! Look-ups: the workers that hold the leading blocks of a prompt, and how many each holds.
//!
//! In the order of a look-up:
//!
//! 1. `Index::find` and the others, below – the calls: one query, or several whose cache misses overlap
//! 2. [`query`] – the prompt as sequence hashes, computed no further than needed
//! 3. [`first_round`] and [`prefix_end_cache`] – where the search looks first
//! 4. [`prefix_search`] – the depths at which the set of holders changes: it credits each worker with a match
//! 5. [`holders`] – the sets of holders at those depths; [`worker_filter`] – the workers that may be named
//! 6. [`matches`] – the answer, in order
//! 7. [`tie_break`] and [`tie_break_cache`] – who stays where the limit falls among equals
//!
//! Every call is pinned from start to end: nothing that it can reach is freed or reused meanwhile, neither memory nor worker
//! slots. Once its buffers have grown to what the queries need, a look-up allocates nothing.

use crate::index::Index;
use crate::memory::reclamation::Pin;

pub(crate) mod first_round;
pub(crate) mod holders;
pub(crate) mod matches;
pub(crate) mod prefix_end_cache;
pub(crate) mod prefix_search;
pub(crate) mod query;
pub(crate) mod tie_break;
pub(crate) mod tie_break_cache;
pub(crate) mod worker_filter;

use matches::{Answer, Matches, Pairs};
use prefix_search::ReadContext;
use query::{Chained, FindOptions, Given, LeBytes, Query, SequenceHashes as _};

/// Queries in progress at a time: the lines that they have asked for must still be in the near caches when their turn comes.
const AT_A_TIME: usize = 8;

/// Evaluates an expression with the search of an answer and the query's sequence hashes, in whatever form they came.
macro_rules! with_hashes {
    ($query:expr, $out:expr, |$search:ident, $hashes:ident| $body:expr) => {{
        let $search = $out.search();
        let mut chain = std::mem::take(&mut $search.chain);
        let result = with_hashes!($query, &mut chain, $hashes, $body);
        $out.search().chain = chain;
        result
    }};
    ($query:expr, $chain:expr, $hashes:ident, $body:expr) => {
        match $query {
            Query::SequenceHashes(words) => with_hashes!($hashes, Given(words), $body),
            Query::SequenceHashesLe(bytes) => with_hashes!($hashes, Given(LeBytes(bytes)), $body),
            Query::ChunkHashes(chunks) => {
                let chain = $chain;
                with_hashes!($hashes, Chained { chunks, chain }, $body)
            }
            Query::ChunkHashesLe(bytes) => {
                let (chunks, chain) = (LeBytes(bytes), $chain);
                with_hashes!($hashes, Chained { chunks, chain }, $body)
            }
        }
    };
    ($hashes:ident, $form:expr, $body:expr) => {{
        #[allow(unused_mut, reason = "not every body computes hashes")]
        let mut $hashes = $form;
        $body
    }};
}

impl Index {
    /// Writes to `out` the workers that hold leading blocks of `query`, and how many each holds. The buffers of `out` are
    /// reused.
    pub fn find(&self, query: Query<'_>, options: &FindOptions<'_>, out: &mut Matches) {
        self.find_one(query, options, out);
    }

    /// As [`Self::find`], by slot instead of worker and in no order among equal depths: the result of the search, without
    /// the cost of naming and ordering. The limit keeps the same ones.
    ///
    /// A slot is the one that was live when the look-up began ([`crate::SlotId::slot`]). It may be allocated again, to
    /// another worker, once it is retired and swept. So a caller that translates slots by its own table does so before it
    /// allocates again.
    pub fn find_pairs(&self, query: Query<'_>, options: &FindOptions<'_>, out: &mut Pairs) {
        self.find_one(query, options, out);
    }

    /// As [`Self::find`] of each query, into the answer of `out` at the same place. Faster than one by one, since several
    /// wait for memory together. The buffers of each answer are reused.
    ///
    /// # Panics
    /// If there are not as many answers as queries.
    pub fn find_batch(
        &self,
        queries: &[Query<'_>],
        options: &FindOptions<'_>,
        out: &mut [Matches],
    ) {
        self.find_many(queries, options, out);
    }

    /// As [`Self::find_pairs`] of each query, see [`Self::find_batch`].
    ///
    /// # Panics
    /// If there are not as many answers as queries.
    pub fn find_pairs_batch(
        &self,
        queries: &[Query<'_>],
        options: &FindOptions<'_>,
        out: &mut [Pairs],
    ) {
        self.find_many(queries, options, out);
    }

    fn find_one<A: Answer>(&self, query: Query<'_>, options: &FindOptions<'_>, out: &mut A) {
        let pin = self.shared.reclaimer.pin();
        let context = self.read_context(&pin);
        out.clear();
        out.search().chain.clear();
        with_hashes!(query, out, |search, hashes| {
            if search.start(&mut hashes, context, options)
                && search.read_first(&hashes, context, options)
            {
                loop {
                    search.read_round(&hashes, context);
                    if !search.end_round(&mut hashes, context) {
                        break;
                    }
                }
                out.write(context.view, options.limit, |depth| {
                    hashes.at(depth as usize - 1)
                });
            }
        });
    }

    fn find_many<A: Answer>(
        &self,
        queries: &[Query<'_>],
        options: &FindOptions<'_>,
        out: &mut [A],
    ) {
        assert_eq!(queries.len(), out.len(), "one answer a query");
        let pin = self.shared.reclaimer.pin();
        let context = self.read_context(&pin);
        for (queries, out) in queries.chunks(AT_A_TIME).zip(out.chunks_mut(AT_A_TIME)) {
            find_together(queries, options, out, context);
        }
    }

    fn read_context<'p>(&'p self, pin: &'p Pin<'p>) -> ReadContext<'p> {
        ReadContext {
            table: &self.directories[0],
            workers: &self.shared.workers,
            pin,
            view: self.shared.workers.view(pin),
        }
    }
}

/// Up to [`AT_A_TIME`] look-ups that take turns: each asks for the lines that it reads next, then the others go on.
fn find_together<A: Answer>(
    queries: &[Query<'_>],
    options: &FindOptions<'_>,
    out: &mut [A],
    context: ReadContext<'_>,
) {
    let count = queries.len();
    let mut goes_on = [false; AT_A_TIME];
    for place in 0..count {
        let out = &mut out[place];
        out.clear();
        out.search().chain.clear();
        goes_on[place] = with_hashes!(queries[place], out, |search, hashes| {
            search.start(&mut hashes, context, options)
        });
    }
    for place in 0..count {
        if goes_on[place] {
            goes_on[place] = with_hashes!(queries[place], out[place], |search, hashes| {
                search.read_first(&hashes, context, options)
            });
        }
    }
    let matched = goes_on;
    while goes_on.contains(&true) {
        for place in (0..count).filter(|&place| goes_on[place]) {
            with_hashes!(queries[place], out[place], |search, hashes| {
                search.read_round(&hashes, context);
            });
        }
        for place in 0..count {
            if goes_on[place] {
                goes_on[place] = with_hashes!(queries[place], out[place], |search, hashes| {
                    search.end_round(&mut hashes, context)
                });
            }
        }
    }
    for place in 0..count {
        if matched[place] {
            let out = &mut out[place];
            with_hashes!(queries[place], out, |_search, hashes| {
                out.write(context.view, options.limit, |depth| {
                    hashes.at(depth as usize - 1)
                });
            });
        }
    }
}
