//! Bodies without a tokenizer, and a template by its syntax tree. Texts and templates of families of models are compared
//! with Python in `tests/property/frontend/test_prompt_reader.py`.

use std::num::NonZeroUsize;
use std::sync::Arc;

use kvatlas_hashing::{chunk_hash, seed};
use kvatlas_prompts::{
    Body, Budget, ChatTemplate, Left, LocalTime, PromptReader, Refused, Route, Template, Tenant,
    Tokens,
};
use proptest::prelude::*;

const NOON: LocalTime = LocalTime {
    year: 2026,
    month: 11,
    day: 3,
    hour: 12,
    minute: 5,
    second: 0,
    weekday: 2,
};

fn reader() -> PromptReader {
    PromptReader {
        encoder: None,
        template: None,
        cache: None,
        block_size: NonZeroUsize::new(2).expect("not zero"),
        wants_tokens: true,
        now: Box::new(|| NOON),
    }
}

fn completion(body: &[u8]) -> Result<(Tokens, Vec<u64>), Left> {
    let reader = reader();
    let mut body = reader.body(Route::Completions, body)?;
    let tokens = reader.tokens(&mut body, Tenant::Unknown, Budget(0))?;
    let hashes = reader.chunk_hashes(&tokens, None, body.cache_salt());
    Ok((tokens, hashes))
}

fn fields<'a>(reader: &PromptReader, body: &'a str) -> Result<Body<'a>, Left> {
    reader.body(Route::Completions, body.as_bytes())
}

#[test]
fn token_ids_are_hashed_without_the_block_that_ends_with_the_last_token() {
    let (tokens, hashes) = completion(br#"{"prompt": [1, 2, 3, 4]}"#).expect("usual");
    assert_eq!(tokens.ids, [1, 2, 3, 4]);
    assert!(tokens.is_whole);
    assert_eq!(hashes, [chunk_hash(&[1, 2], seed(None, None), &[])]);
}

#[test]
fn a_salt_enters_the_hashes() {
    let body = br#"{"prompt": [1, 2, 3], "cache_salt": "s\u00fc"}"#;
    let (_, hashes) = completion(body).expect("usual");
    assert_eq!(hashes, [chunk_hash(&[1, 2], seed(None, Some("sü")), &[])]);
}

#[test]
fn the_last_tokens_are_kept_and_the_first_list_counts() {
    let body = br#"{"prompt": [[1, 2, 3], [9]], "truncate_prompt_tokens": 2}"#;
    assert_eq!(completion(body).expect("usual").0.ids, [2, 3]);
    let body = br#"{"prompt": [1, 2, 3], "truncate_prompt_tokens": -1}"#;
    assert_eq!(completion(body).expect("usual").0.ids, [1, 2, 3]);
}

#[test]
fn a_text_is_left_without_a_tokenizer() {
    assert_eq!(completion(br#"{"prompt": "a"}"#), Err(Left::Tokenizer));
}

#[test]
fn the_last_of_equal_fields_counts() {
    let reader = reader();
    let body = fields(
        &reader,
        r#"{"model": "a", "stream": 1, "prompt": [1], "model": "b", "stream": false}"#,
    );
    let body = body.map(|body| (body.model().map(str::to_owned), body.stream()));
    assert_eq!(body, Ok((Some("b".to_owned()), false)));
}

#[test]
fn deep_and_broken_bodies_are_left() {
    let deep = format!(
        r#"{{"prompt": [1], "x": {}{}}}"#,
        "[".repeat(1000),
        "]".repeat(1000)
    );
    for body in [
        &deep,
        "",
        "[]",
        "{}",
        r#"{"prompt": [1]} x"#,
        r#"{"prompt": [1], "x": "\ud800"}"#,
    ] {
        assert_eq!(fields(&reader(), body).err(), Some(Left::Body), "{body}");
    }
    let no_utf8 = b"{\"prompt\": [1], \"x\": \"\xff\"}";
    assert_eq!(completion(no_utf8), Err(Left::Body));
}

/// `{% for m in messages %}{{ m.role ~ loop.index }}{% endfor %}{{ strftime_now(…) }}`
const TREE: &str = r#"{"unset": [], "body": [
    {"For": {"target": {"Name": {"name": "m"}}, "iter": {"Name": {"name": "messages"}},
        "body": [{"Output": {"nodes": [{"Concat": {"nodes": [
            {"Getattr": {"node": {"Name": {"name": "m"}}, "attr": "role"}},
            {"Getattr": {"node": {"Name": {"name": "loop"}}, "attr": "index"}}]}}]}}],
        "else_": [], "test": null, "recursive": false}},
    {"Output": {"nodes": [{"Call": {"node": {"Name": {"name": "strftime_now"}}, "kwargs": [],
        "args": [{"Const": {"value": "%d %b %Y, %A %H:%M"}}], "dyn_args": null, "dyn_kwargs": null}}]}}]}"#;

fn template() -> ChatTemplate {
    ChatTemplate {
        template: Template::load(TREE.as_bytes()).expect("a tree"),
        special_tokens: Vec::new(),
        content_is_list: false,
    }
}

#[test]
fn a_tree_is_run() {
    let body = br#"{"messages": [{"role": "user"}, {"role": null}, {"role": "x"}]}"#;
    assert_eq!(
        template().render_body(body, &|| NOON),
        Ok(("user12x303 Nov 2026, Tuesday 12:05".to_owned(), true))
    );
}

#[test]
fn an_unknown_statement_is_an_error_of_loading() {
    assert!(Template::load(br#"{"unset": [], "body": [{"CallBlock": {}}]}"#).is_err());
}

#[test]
fn a_template_ends_with_its_budget() {
    let mut reader = reader();
    reader.template = Some(Arc::new(template()));
    let body = format!(
        r#"{{"messages": [{}{{}}]}}"#,
        r#"{"role": "user"},"#.repeat(1000)
    );
    let mut read = reader.body(Route::Chat, body.as_bytes()).expect("usual");
    // Without a tokenizer nothing is rendered.
    assert_eq!(
        reader.tokens(&mut read, Tenant::Unknown, Budget(100)),
        Err(Left::Tokenizer)
    );
    assert_eq!(Left::TooLong.name(), "too_long");
    assert_ne!(Refused::TooLong, Refused::Unlike(""));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_left(body in any::<Vec<u8>>(), is_chat in any::<bool>()) {
        let route = if is_chat { Route::Chat } else { Route::Completions };
        if let Ok(read) = reader().body(route, &body) {
            prop_assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
            drop(read);
        }
    }

    #[test]
    fn token_ids_come_back(ids in prop::collection::vec(any::<u32>(), 1..50)) {
        let body = serde_json::json!({"prompt": ids}).to_string();
        let (tokens, hashes) = completion(body.as_bytes()).expect("usual");
        prop_assert_eq!(hashes.len(), (ids.len() - 1) / 2);
        prop_assert_eq!(tokens.ids, ids);
    }
}
