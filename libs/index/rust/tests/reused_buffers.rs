//! Caches in reused buffers never show in an answer: neither cached ends of prefixes, nor tie breaks, nor filters.
//!
//! Two indexes, whose workers and sets keep changing, are asked the same few questions with the same few buffers, by every
//! kind of call. Each answer must follow from who is live and what they hold. So it depends neither on the order of events
//! nor on the numbers of slots.

#[path = "reused_buffers/world.rs"]
mod world;

use proptest::prelude::*;

use world::{Action, BLOCKS, BUFFERS, FORKS, Question, WORKERS, World};

/// Different questions that are asked in one history.
const QUESTIONS: usize = 5;
const FILTERS: usize = 6;

fn depth() -> impl Strategy<Value = usize> {
    prop_oneof![3 => prop::sample::select(vec![1, 2, 3, 8, 9, 20, 64]), 2 => 0..=BLOCKS]
}

fn question(holes: bool) -> impl Strategy<Value = Question> {
    let limit = prop_oneof![Just(0usize), 1usize..8, 1usize..80, Just(usize::MAX)];
    let min_depth =
        prop_oneof![3 => Just(0usize), 2 => 0usize..12, 1 => 0usize..BLOCKS, 1 => Just(usize::MAX)];
    let from = prop_oneof![4 => Just(0), 1 => prop::sample::select(vec![1, 2, 8, 20])];
    let length = prop_oneof![3 => Just(BLOCKS), 1 => 0..4usize, 2 => 0..=BLOCKS];
    let query = (
        0..2usize,
        0..FORKS.len(),
        from,
        length,
        any::<(bool, bool)>(),
    );
    let filter = prop::option::weighted(0.4, 0..FILTERS);
    (query, limit, min_depth, any::<bool>(), filter, 0..BUFFERS).prop_map(
        move |((fleet, prompt, from, length, form), limit, min_depth, exact, filter, buffer)| {
            Question {
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

fn filter() -> impl Strategy<Value = Action> {
    let filter = (0..2usize, any::<bool>(), any::<u64>(), any::<u64>());
    filter.prop_map(|(fleet, by_slot, even, odd)| Action::Filter(fleet, by_slot, even, odd))
}

fn action() -> impl Strategy<Value = Action> {
    let one = || (0..2usize, 0..WORKERS);
    let hold = (0..2usize, 0..WORKERS, 0..FORKS.len(), depth());
    let batch = prop::collection::vec(0..QUESTIONS, 2..=BUFFERS);
    prop_oneof![
        4 => hold.prop_map(|(fleet, place, prompt, depth)| Action::Hold(fleet, place, prompt, depth)),
        2 => one().prop_map(|(fleet, number)| Action::Join(fleet, number)),
        1 => one().prop_map(|(fleet, number)| Action::Stage(fleet, number)),
        2 => one().prop_map(|(fleet, place)| Action::Leave(fleet, place)),
        1 => one().prop_map(|(fleet, place)| Action::Replace(fleet, place)),
        4 => (one(), 0..WORKERS).prop_map(|((fleet, place), next)| Action::Succeed(fleet, place, next)),
        1 => one().prop_map(|(fleet, place)| Action::Suspend(fleet, place)),
        2 => one().prop_map(|(fleet, place)| Action::Publish(fleet, place)),
        1 => (0..2usize).prop_map(Action::Sweep),
        1 => filter(),
        16 => (0..QUESTIONS, 0..3u8).prop_map(|(question, repeats)| Action::Ask(question, repeats)),
        4 => batch.prop_map(Action::Batch),
    ]
}

/// The first workers of both fleets, in some order, and what they hold; then some filters.
fn start() -> impl Strategy<Value = Vec<Action>> {
    let numbers = Just((0..WORKERS).collect::<Vec<_>>()).prop_shuffle();
    let count = prop_oneof![0..WORKERS, 60..70usize];
    let held = prop::collection::vec((0..FORKS.len(), depth()), WORKERS);
    let fleet = (numbers, count, held).prop_map(|(numbers, count, held)| {
        numbers
            .into_iter()
            .zip(held)
            .take(count)
            .collect::<Vec<_>>()
    });
    let filters = prop::collection::vec(filter(), FILTERS);
    (prop::collection::vec(fleet, 2), filters).prop_map(|(fleets, filters)| {
        let mut actions = Vec::new();
        for (fleet, workers) in fleets.into_iter().enumerate() {
            for (place, (number, (prompt, depth))) in workers.into_iter().enumerate() {
                actions.push(Action::Join(fleet, number));
                actions.push(Action::Hold(fleet, place, prompt, depth));
            }
        }
        actions.extend(filters);
        actions
    })
}

fn play(
    questions: Vec<Question>,
    actions: &[Vec<Action>; 2],
    holes: bool,
) -> Result<(), TestCaseError> {
    let mut world = World::new(questions);
    actions
        .iter()
        .flatten()
        .try_for_each(|action| world.play(action, holes))
}

fn history(holes: bool) -> impl Strategy<Value = (Vec<Question>, [Vec<Action>; 2])> {
    let questions = prop::collection::vec(question(holes), QUESTIONS);
    (questions, start(), prop::collection::vec(action(), 1..80))
        .prop_map(|(questions, start, actions)| (questions, [start, actions]))
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
    fn answers_follow_from_held_blocks_alone((questions, actions) in history(false)) {
        play(questions, &actions, false)?;
    }

    #[test]
    fn exact_answers_follow_from_held_blocks_alone_also_where_sets_have_holes(
        (questions, actions) in history(true),
    ) {
        play(questions, &actions, true)?;
    }
}
