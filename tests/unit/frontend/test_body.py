"""The fields that routing reads from a request."""

import json

import numpy as np
import pytest

from kvatlas_frontend.api.body import (
    ChatPrompt,
    OpaquePrompt,
    ParsedBody,
    TextPrompt,
    TokenPrompt,
    parse_body,
)


def completion(**fields: object) -> ParsedBody:
    return parse_body("completions", json.dumps(fields).encode())


def test_a_text_is_opened_by_special_tokens_unless_told_otherwise() -> None:
    assert completion(prompt="a").prompt == TextPrompt("a", add_special_tokens=True, keep_last=None)
    told = completion(prompt="a", add_special_tokens=False)
    assert told.prompt == TextPrompt("a", add_special_tokens=False, keep_last=None)


def test_a_conversation_is_not() -> None:
    messages = [{"role": "user", "content": "hi"}]
    parsed = parse_body("chat", json.dumps({"messages": messages, "tools": [1]}).encode())
    assert parsed.prompt == ChatPrompt(
        messages, {"tools": [1]}, add_special_tokens=False, keep_last=None
    )


def test_token_ids_become_an_array() -> None:
    prompt = completion(prompt=[1, 2, 4294967295]).prompt
    assert isinstance(prompt, TokenPrompt)
    assert prompt.tokens.dtype == np.uint32
    assert prompt.tokens.tolist() == [1, 2, 4294967295]


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]]])
def test_of_several_prompts_the_first_counts(prompt: list[object]) -> None:
    parsed = completion(prompt=prompt)
    assert parsed.batch
    if isinstance(parsed.prompt, TextPrompt):
        assert parsed.prompt.text == "a"
    else:
        assert isinstance(parsed.prompt, TokenPrompt)
        assert parsed.prompt.tokens.tolist() == [1]


def test_embeddings_are_a_prompt_without_tokens() -> None:
    assert completion(prompt_embeds="AAAA").prompt == OpaquePrompt()


def test_a_prompt_that_the_engine_cuts_is_cut_here() -> None:
    prompt = completion(prompt="a", truncate_prompt_tokens=5).prompt
    assert isinstance(prompt, TextPrompt)
    assert prompt.keep_last == 5
    unlimited = completion(prompt="a", truncate_prompt_tokens=-1).prompt
    assert isinstance(unlimited, TextPrompt)
    assert unlimited.keep_last is None


def test_unknown_fields_are_the_engines_business() -> None:
    parsed = completion(prompt="a", model="m", stream=True, cache_salt="s", best_of={"x": 1})
    assert (parsed.model, parsed.stream, parsed.cache_salt) == ("m", True, "s")


@pytest.mark.parametrize(("user", "name"), [("u", "u"), (None, ""), (5, ""), (["u"], "")])
def test_the_user_is_a_text_or_left_to_the_engine(user: object, name: str) -> None:
    assert completion(prompt="a", user=user).user == name
