//! The look-ups of the public index: one query, or several whose misses overlap, into buffers of the caller's.
//!
//! Every call is pinned from start to end: nothing it can reach is freed or used again meanwhile, neither memory nor
//! worker slots. Once its buffers have grown to what the queries need, a look-up allocates nothing.

use crate::answer::{Answer, Matches, Pairs};
use crate::find::Source;
use crate::grace::Pin;
use crate::index::Index;
use crate::query::{Chained, FindOptions, Given, Hashes, LeBytes, Query};
use crate::roster::View;

/// Queries under way at a time: what they are about to read must still be in the near caches when their turn comes.
const AT_A_TIME: usize = 8;

/// Does something with the search of an answer and the query's sequence hashes, in whatever form they came.
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
        #[allow(unused_mut, reason = "not every body reaches further")]
        let mut $hashes = $form;
        $body
    }};
}

impl Index {
    /// Who holds how many leading blocks of `query`, into `out`, whose buffers are used again.
    pub fn find(&self, query: Query<'_>, options: &FindOptions<'_>, out: &mut Matches) {
        self.one(query, options, out);
    }

    /// As [`Self::find`], by slot instead of worker and in no order among equal depths: all that the search found,
    /// without what it costs to name and order it. The limit keeps the same ones.
    ///
    /// A number is [`crate::SlotId::number`] of the slot that was live when the look-up began. It may be given out again,
    /// to another worker, once the slot is retired and swept; so whoever translates numbers by a table of their own
    /// does it before they allocate again.
    pub fn find_pairs(&self, query: Query<'_>, options: &FindOptions<'_>, out: &mut Pairs) {
        self.one(query, options, out);
    }

    /// As [`Self::find`] of each query, into the place of `out` beside it; and faster than one by one, since
    /// several wait for memory together. Each place's buffers are used again.
    ///
    /// # Panics
    /// If there are not as many places as queries.
    pub fn find_batch(
        &self,
        queries: &[Query<'_>],
        options: &FindOptions<'_>,
        out: &mut [Matches],
    ) {
        self.many(queries, options, out);
    }

    /// As [`Self::find_pairs`] of each query, see [`Self::find_batch`].
    ///
    /// # Panics
    /// If there are not as many places as queries.
    pub fn find_pairs_batch(
        &self,
        queries: &[Query<'_>],
        options: &FindOptions<'_>,
        out: &mut [Pairs],
    ) {
        self.many(queries, options, out);
    }

    fn one<A: Answer>(&self, query: Query<'_>, options: &FindOptions<'_>, out: &mut A) {
        let pin = self.shared.grace.pin();
        let source = self.source(&pin);
        out.clear();
        out.search().chain.clear();
        with_hashes!(query, out, |search, hashes| {
            if search.open(&mut hashes, source, options)
                && let Some(view) = search.begin(&hashes, source, options)
            {
                loop {
                    search.look(&hashes, source);
                    if !search.resolve(&mut hashes, source) {
                        break;
                    }
                }
                out.report(view, options.limit, |depth| hashes.at(depth as usize - 1));
            }
        });
    }

    fn many<A: Answer>(&self, queries: &[Query<'_>], options: &FindOptions<'_>, out: &mut [A]) {
        assert_eq!(queries.len(), out.len(), "one place a query");
        let pin = self.shared.grace.pin();
        let source = self.source(&pin);
        for (queries, out) in queries.chunks(AT_A_TIME).zip(out.chunks_mut(AT_A_TIME)) {
            together(queries, options, out, source);
        }
    }

    fn source<'p>(&'p self, pin: &'p Pin<'p>) -> Source<'p> {
        Source {
            table: &self.directories[0],
            roster: &self.shared.roster,
            pin,
            view: self.shared.roster.view(pin),
        }
    }
}

/// Up to [`AT_A_TIME`] look-ups that take turns: each asks for what it will read next, then the others go on.
fn together<A: Answer>(
    queries: &[Query<'_>],
    options: &FindOptions<'_>,
    out: &mut [A],
    source: Source<'_>,
) {
    let count = queries.len();
    let mut goes_on = [false; AT_A_TIME];
    let mut views: [Option<&View>; AT_A_TIME] = [None; AT_A_TIME];
    for place in 0..count {
        let out = &mut out[place];
        out.clear();
        out.search().chain.clear();
        goes_on[place] = with_hashes!(queries[place], out, |search, hashes| {
            search.open(&mut hashes, source, options)
        });
    }
    for place in 0..count {
        if goes_on[place] {
            views[place] = with_hashes!(queries[place], out[place], |search, hashes| {
                search.begin(&hashes, source, options)
            });
            goes_on[place] = views[place].is_some();
        }
    }
    while goes_on.contains(&true) {
        for place in (0..count).filter(|&place| goes_on[place]) {
            with_hashes!(queries[place], out[place], |search, hashes| {
                search.look(&hashes, source);
            });
        }
        for place in 0..count {
            if goes_on[place] {
                goes_on[place] = with_hashes!(queries[place], out[place], |search, hashes| {
                    search.resolve(&mut hashes, source)
                });
            }
        }
    }
    for place in 0..count {
        if let Some(view) = views[place] {
            let out = &mut out[place];
            with_hashes!(queries[place], out, |_search, hashes| {
                out.report(view, options.limit, |depth| hashes.at(depth as usize - 1));
            });
        }
    }
}
