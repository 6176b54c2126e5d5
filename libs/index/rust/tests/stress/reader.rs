//! Readers: look-ups of every kind, whose answers must have been possible.

use std::collections::BTreeSet;

use kvatlas_index::{FindOptions, Matches, Pairs, Query, WorkerFilter, WorkerKey, WorkerSlot};

use crate::bounds::{Asked, Bounds, DepthRange, check};
use crate::random::Random;
use crate::world::{
    BLOCKS, PASSING, Progress, REPLACED, STABLE, Subject, TOGGLED, TOGGLED_BLOCKS, World, chunks,
    prompt,
};

/// More filters than a reader's buffers cache.
const FILTERS: u64 = 6;
/// More queries than are in progress at a time.
const BATCH: u64 = 12;

/// A reader, with its own buffers, filters and random numbers.
pub struct Reader<'a> {
    world: &'a World,
    random: Random,
    filters: Vec<Named>,
    matches: Vec<Matches>,
    pairs: Vec<Pairs>,
    /// Numbers of look-ups so far.
    pub asked: Asks,
}

/// Numbers of look-ups of each kind.
#[derive(Default, Debug)]
pub struct Asks {
    pub all: u64,
    pub together: u64,
    pub by_slot: u64,
    pub filtered: u64,
    pub cut_by_limit: u64,
    pub with_min_depth: u64,
}

impl Asks {
    /// The sum of both.
    pub fn with(self, other: Self) -> Self {
        Self {
            all: self.all + other.all,
            together: self.together + other.together,
            by_slot: self.by_slot + other.by_slot,
            filtered: self.filtered + other.filtered,
            cut_by_limit: self.cut_by_limit + other.cut_by_limit,
            with_min_depth: self.with_min_depth + other.with_min_depth,
        }
    }
}

/// A filter, and the workers that it includes.
struct Named {
    filter: WorkerFilter,
    workers: BTreeSet<u64>,
    /// Whether it lists slots. Then it no longer includes the replaced worker once that has another slot.
    by_slot: bool,
}

/// One query.
struct Question {
    subject: Subject,
    hashes: Vec<u64>,
    chunks: Vec<u64>,
    by_chunks: bool,
}

impl Question {
    fn query(&self) -> Query<'_> {
        if self.by_chunks {
            Query::ChunkHashes(&self.chunks)
        } else {
            Query::SequenceHashes(&self.hashes)
        }
    }
}

impl<'a> Reader<'a> {
    pub fn new(world: &'a World, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let filters = (0..FILTERS)
            .map(|number| Named::random(world, &mut random, number % 3 == 0))
            .collect();
        Self {
            world,
            random,
            filters,
            matches: (0..BATCH).map(|_| Matches::default()).collect(),
            pairs: (0..BATCH).map(|_| Pairs::default()).collect(),
            asked: Asks::default(),
        }
    }

    /// Makes one call, with one query or several, and checks the answers.
    pub fn ask(&mut self) {
        let together = self.random.one_in(4);
        let count = if together {
            self.random.below(BATCH + 1)
        } else {
            1
        };
        let questions: Vec<_> = (0..count).map(|_| self.question()).collect();
        let known = |question: &Question| question.subject.has_known_slots();
        let by_slot = self.random.one_in(3) && questions.iter().all(known);
        let named = self
            .random
            .one_in(3)
            .then(|| self.random.below(FILTERS) as usize);
        let options = FindOptions {
            limit: if self.random.one_in(3) {
                1 + self.random.below(12) as usize
            } else {
                0
            },
            exact: self.random.one_in(2),
            min_depth: if self.random.one_in(3) {
                self.random.below(60) as usize
            } else {
                0
            },
            filter: named.map(|named| &self.filters[named].filter),
        };
        let before = self.world.progress();
        let queries: Vec<_> = questions.iter().map(Question::query).collect();
        let index = &self.world.index;
        match (by_slot, together) {
            (false, false) => index.find(queries[0], &options, &mut self.matches[0]),
            (true, false) => index.find_pairs(queries[0], &options, &mut self.pairs[0]),
            (false, true) => {
                let out = &mut self.matches[..queries.len()];
                index.find_batch(&queries, &options, out);
            }
            (true, true) => {
                let out = &mut self.pairs[..queries.len()];
                index.find_pairs_batch(&queries, &options, out);
            }
        }
        let filter = named.map(|named| &self.filters[named]);
        let mut cut = 0;
        for (place, question) in questions.iter().enumerate() {
            let bounds = self.bounds(question, before, filter);
            let found = if by_slot {
                self.found_by_slot(place, &bounds)
            } else {
                Some(self.found(place))
            };
            let Some(found) = found else { continue };
            let asked = Asked {
                hashes: &question.hashes,
                limit: options.limit,
                min_depth: options.min_depth,
            };
            cut += u64::from(options.limit > 0 && found.len() == options.limit);
            if let Err(why) = check(asked, &bounds, &found) {
                let Question {
                    subject, by_chunks, ..
                } = question;
                panic!(
                    "{subject:?}, {} blocks, by chunks: {by_chunks}, {options:?}, together: {together}: \
                     {why}\nfound {found:?}\npossible {bounds:?}",
                    question.hashes.len()
                );
            }
        }
        let asked = &mut self.asked;
        asked.all += count;
        asked.together += if together { count } else { 0 };
        asked.by_slot += if by_slot { count } else { 0 };
        asked.filtered += if filter.is_some() { count } else { 0 };
        asked.with_min_depth += if options.min_depth > 1 { count } else { 0 };
        asked.cut_by_limit += cut;
    }

    fn question(&mut self) -> Question {
        let random = &mut self.random;
        let subject = match random.below(14) {
            0 => Subject::Stable(STABLE + random.below(8)),
            1 => Subject::Growing,
            2 | 3 => Subject::Replaced,
            4 => Subject::Passing((self.world.lap() + random.below(4)).saturating_sub(2)),
            5 | 6 => Subject::Crowd,
            7 => Subject::Toggled(TOGGLED + 10 * random.below(2)),
            8 | 9 => Subject::Ladder,
            10 => Subject::Tide,
            11 => Subject::Tiered,
            12 => Subject::Cleared,
            _ => Subject::Unknown(1 << 40 | random.below(1 << 20)),
        };
        let whole = BLOCKS;
        let blocks = match random.below(4) {
            0 => random.below(BLOCKS as u64 + 1) as usize,
            1 => TOGGLED_BLOCKS,
            _ => whole,
        };
        let (mut hashes, mut chunks) = (prompt(subject.of()), chunks(subject.of()));
        hashes.truncate(blocks);
        chunks.truncate(blocks);
        let by_chunks = random.one_in(2);
        Question {
            subject,
            hashes,
            chunks,
            by_chunks,
        }
    }

    /// The bounds of an answer, of workers that the filter includes.
    fn bounds(&self, question: &Question, before: Progress, filter: Option<&Named>) -> Bounds {
        let mut bounds = self.world.bounds(question.subject, before);
        if let Some(named) = filter {
            bounds.retain(|who, _| named.workers.contains(who));
            if let (true, Some(range)) = (named.by_slot, bounds.get_mut(&REPLACED)) {
                *range = DepthRange::all_or_nothing(range.most);
            }
        }
        bounds
    }

    fn found(&self, place: usize) -> Vec<(u64, usize)> {
        let Matches {
            workers, depths, ..
        } = &self.matches[place];
        assert_eq!(workers.len(), depths.len());
        let found: Vec<_> = workers
            .iter()
            .zip(depths)
            .map(|(worker, &depth)| (worker.worker_id, depth as usize))
            .collect();
        let in_order = |pair: &[(u64, usize)]| {
            let ((a, deep), (b, shallow)) = (pair[0], pair[1]);
            deep > shallow || deep == shallow && a < b
        };
        assert!(found.windows(2).all(in_order), "out of order: {found:?}");
        found
    }

    /// None if a slot was reused from one worker that may have been found to another: then it does not say whose it was.
    fn found_by_slot(&self, place: usize, bounds: &Bounds) -> Option<Vec<(u64, usize)>> {
        let Pairs { slots, depths, .. } = &self.pairs[place];
        assert_eq!(slots.len(), depths.len());
        let owner = |&slot: &WorkerSlot| match self.world.owners(slot, bounds)[..] {
            [] => panic!("{slot:?} is of no worker that may be found: {bounds:?}"),
            [owner] => Some(owner),
            _ => None,
        };
        let depths = depths.iter().map(|&depth| depth as usize);
        let pairs = slots.iter().map(owner).zip(depths);
        pairs.map(|(owner, depth)| Some((owner?, depth))).collect()
    }
}

impl Named {
    /// A filter of about two thirds of all workers; by slot, of those that keep theirs, and of the replaced worker's first.
    fn random(world: &World, random: &mut Random, by_slot: bool) -> Self {
        let mut included = |_: &u64| !random.one_in(3);
        if by_slot {
            let stay = world.fixed.iter().copied();
            let slots: Vec<_> = stay
                .filter(|(who, _)| included(who))
                .chain([(REPLACED, world.replaced)])
                .collect();
            return Self {
                filter: WorkerFilter::of_slots(slots.iter().map(|&(_, slot)| slot)),
                workers: slots.iter().map(|&(who, _)| who).collect(),
                by_slot,
            };
        }
        let workers: BTreeSet<u64> = world
            .all_workers()
            .into_iter()
            .filter(|who| included(who))
            .collect();
        let unknown = [PASSING - 1, u64::MAX];
        let keys = workers.iter().copied().chain(unknown);
        let key = |worker_id| WorkerKey {
            worker_id,
            dp_rank: 0,
        };
        Self {
            filter: WorkerFilter::of_workers(keys.map(key)),
            workers,
            by_slot,
        }
    }
}
