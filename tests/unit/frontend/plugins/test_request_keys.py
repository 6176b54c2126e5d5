"""Keys of requests: sessions, tenants, hashes, and a length without tokenizing."""

import time
from typing import Any

import pytest

from kvatlas_frontend.api.body import ChatPrompt, Prompt, TextPrompt
from kvatlas_frontend.routing.slots import (
    HASH_KEY,
    PARENT_SESSION,
    SESSION,
    TENANT,
    TOKEN_ESTIMATE,
)
from kvatlas_frontend.routing.trial import Trial


def trial(*prepare: Any) -> Trial:  # noqa: ANN401 - any entry
    return Trial({"name": "p", "prepare": list(prepare), "pick": "round-robin"}, 1)


@pytest.mark.parametrize(
    ("headers", "user", "session"),
    [
        ({"x-session-affinity": "a", "session-id": "b"}, "u", "a"),
        ({"x-session-affinity": "", "x-claude-code-session-id": "c"}, "u", "c"),
        ({"x-dynamo-session-id": "d"}, "", "d"),
        ({}, "u", "u"),
        ({}, "", ""),
    ],
)
async def test_a_session_is_the_first_header_that_has_a_value(
    headers: dict[str, str], user: str, session: str
) -> None:
    made = trial("session")
    await made.route(headers=headers, user=user)
    assert made.context[SESSION] == session


async def test_the_headers_of_a_session_can_be_chosen() -> None:
    made = trial({"session": {"headers": ["x-chat"], "use_user": False}})
    await made.route(headers={"x-chat": "1", "session-id": "2"}, user="u")
    assert made.context[SESSION] == "1"
    await made.route(headers={"session-id": "2"}, user="u")
    assert made.context[SESSION] == ""


async def test_a_huge_header_makes_a_short_key_and_costs_little() -> None:
    """1 MB of header, as a client might send that wants to fill a table."""
    made = trial("session")
    huge = "x" * 1_000_000
    began = time.process_time()
    await made.route(headers={"session-id": huge})
    assert time.process_time() - began < 0.1
    first = made.context[SESSION]
    assert len(first) == 32
    await made.route(headers={"session-id": huge + "y"})
    assert made.context[SESSION] != first


async def test_a_parent_session_is_a_header_of_its_own() -> None:
    made = trial("parent-session")
    await made.route(headers={"x-parent-session-id": "p"})
    assert made.context[PARENT_SESSION] == "p"
    await made.route()
    assert made.context[PARENT_SESSION] == ""


async def test_a_tenant_is_a_digest_of_the_token_unless_a_header_names_it() -> None:
    """The digest is BLAKE2b of 16 bytes: `printf secret | b2sum -l 128`."""
    made = trial({"tenant": {"header": "x-tenant"}})
    await made.route(headers={"x-tenant": "acme", "authorization": "Bearer secret"})
    assert made.context[TENANT] == "acme"
    await made.route(headers={"authorization": "bearer secret"})
    assert made.context[TENANT] == "8f64bfc250ac98ecf5a0f6a52cde7ec5"
    await made.route(headers={"authorization": "Basic secret"})
    assert made.context[TENANT] == ""


async def test_a_hash_key_is_of_the_first_fact_that_there_is() -> None:
    """Two prompts that share their first 2 blocks of 16 tokens."""
    made = trial(
        "session",
        "tokens",
        "chunk-hashes",
        {"hash-key": {"by": ["session", "blocks"], "blocks": 2}},
    )
    keys: list[int | None] = []
    for prompt, headers in (
        (100, {"session-id": "s"}),
        (33, {"session-id": "s"}),
        (100, {}),
        (33, {}),
        (17, {}),
        (16, {}),
    ):
        await made.route(prompt, headers=headers)
        keys.append(made.context[HASH_KEY])
    assert keys[0] == keys[1] is not None
    assert keys[2] == keys[3] is not None
    assert len({keys[0], keys[2], keys[4]}) == 3
    assert keys[5] is None


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (TextPrompt("x" * 400, True, None), 100),
        (7, 7),
        (0, 0),
        (
            ChatPrompt(
                [
                    {"role": "user", "content": "x" * 40},
                    {"role": "user", "content": [{"type": "text", "text": "y" * 20}, {"x": 1}, 5]},
                    {"role": "assistant", "content": None},
                ],
                {},
                False,
                None,
            ),
            15,
        ),
    ],
)
async def test_an_estimate_is_a_quarter_of_the_characters(
    prompt: Prompt | int, tokens: int
) -> None:
    made = trial("token-estimate")
    await made.route(prompt, keep=True)
    assert made.context[TOKEN_ESTIMATE] == tokens
    assert made.fleet.columns.active_tokens[made.row(0)] == tokens
