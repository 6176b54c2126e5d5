//! Nothing that buffers keep from look-up to look-up shows in an answer: not where heads ended, not whom draws
//! prefer, not whom a filter meant.
//!
//! Two indexes whose rosters and sets keep changing are asked the same few questions with the same few buffers, in every way
//! there is. Each answer must be the one that follows from who is live and what they hold; so it also depends on no
//! order of events and no number of a slot.

#[path = "remembered/world.rs"]
mod world;

use proptest::prelude::*;

use world::{Act, Asked, BLOCKS, BUFFERS, PARTS, WORKERS, World};

/// Different ones that are asked in one history.
const QUESTIONS: usize = 5;
const FILTERS: usize = 6;

fn depth() -> impl Strategy<Value = usize> {
    prop_oneof![3 => prop::sample::select(vec![1, 2, 3, 8, 9, 20, 64]), 2 => 0..=BLOCKS]
}

fn asked(holes: bool) -> impl Strategy<Value = Asked> {
    let limit = prop_oneof![Just(0usize), 1usize..8, 1usize..80, Just(usize::MAX)];
    let min_depth =
        prop_oneof![3 => Just(0usize), 2 => 0usize..12, 1 => 0usize..BLOCKS, 1 => Just(usize::MAX)];
    let from = prop_oneof![4 => Just(0), 1 => prop::sample::select(vec![1, 2, 8, 20])];
    let length = prop_oneof![3 => Just(BLOCKS), 1 => 0..4usize, 2 => 0..=BLOCKS];
    let query = (
        0..2usize,
        0..PARTS.len(),
        from,
        length,
        any::<(bool, bool)>(),
    );
    let filter = prop::option::weighted(0.4, 0..FILTERS);
    (query, limit, min_depth, any::<bool>(), filter, 0..BUFFERS).prop_map(
        move |((fleet, prompt, from, length, form), limit, min_depth, exact, filter, buffer)| {
            Asked {
                fleet,
                prompt,
                from,
                length,
                limit,
                min_depth,
                exact: exact || holes,
                filter,
                buffer,
                form,
            }
        },
    )
}

fn filter() -> impl Strategy<Value = Act> {
    let filter = (0..2usize, any::<bool>(), any::<u64>(), any::<u64>());
    filter.prop_map(|(fleet, by_slot, some, others)| Act::Filter(fleet, by_slot, some, others))
}

fn act() -> impl Strategy<Value = Act> {
    let one = || (0..2usize, 0..WORKERS);
    let hold = (0..2usize, 0..WORKERS, 0..PARTS.len(), depth());
    let batch = prop::collection::vec(0..QUESTIONS, 2..=BUFFERS);
    prop_oneof![
        4 => hold.prop_map(|(fleet, place, prompt, depth)| Act::Hold(fleet, place, prompt, depth)),
        2 => one().prop_map(|(fleet, number)| Act::Come(fleet, number)),
        1 => one().prop_map(|(fleet, number)| Act::Stage(fleet, number)),
        2 => one().prop_map(|(fleet, place)| Act::Leave(fleet, place)),
        1 => one().prop_map(|(fleet, place)| Act::Replace(fleet, place)),
        4 => (one(), 0..WORKERS).prop_map(|((fleet, place), next)| Act::Succeed(fleet, place, next)),
        1 => one().prop_map(|(fleet, place)| Act::Hide(fleet, place)),
        2 => one().prop_map(|(fleet, place)| Act::Show(fleet, place)),
        1 => (0..2usize).prop_map(Act::Sweep),
        1 => filter(),
        16 => (0..QUESTIONS, 0..3u8).prop_map(|(asked, more)| Act::Ask(asked, more)),
        4 => batch.prop_map(Act::Batch),
    ]
}

/// Who is there at first, in what order and of which fleet, and what they hold; then some filters.
fn start() -> impl Strategy<Value = Vec<Act>> {
    let numbers = Just((0..WORKERS).collect::<Vec<_>>()).prop_shuffle();
    let count = prop_oneof![0..WORKERS, 60..70usize];
    let held = prop::collection::vec((0..PARTS.len(), depth()), WORKERS);
    let fleet = (numbers, count, held).prop_map(|(numbers, count, held)| {
        numbers
            .into_iter()
            .zip(held)
            .take(count)
            .collect::<Vec<_>>()
    });
    let filters = prop::collection::vec(filter(), FILTERS);
    (prop::collection::vec(fleet, 2), filters).prop_map(|(fleets, filters)| {
        let mut acts = Vec::new();
        for (fleet, workers) in fleets.into_iter().enumerate() {
            for (place, (number, (prompt, depth))) in workers.into_iter().enumerate() {
                acts.push(Act::Come(fleet, number));
                acts.push(Act::Hold(fleet, place, prompt, depth));
            }
        }
        acts.extend(filters);
        acts
    })
}

fn play(questions: Vec<Asked>, acts: &[Vec<Act>; 2], holes: bool) -> Result<(), TestCaseError> {
    let mut world = World::new(questions);
    acts.iter()
        .flatten()
        .try_for_each(|act| world.act(act, holes))
}

fn history(holes: bool) -> impl Strategy<Value = (Vec<Asked>, [Vec<Act>; 2])> {
    let questions = prop::collection::vec(asked(holes), QUESTIONS);
    (questions, start(), prop::collection::vec(act(), 1..80))
        .prop_map(|(questions, start, acts)| (questions, [start, acts]))
}

fn cases() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(16)
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn answers_follow_from_what_is_held_alone((questions, acts) in history(false)) {
        play(questions, &acts, false)?;
    }

    #[test]
    fn exact_answers_follow_from_what_is_held_alone_also_where_sets_have_holes(
        (questions, acts) in history(true),
    ) {
        play(questions, &acts, true)?;
    }
}
