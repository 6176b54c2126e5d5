"""Items of the Responses API as conversations, by what is known of the engines."""

import json
from typing import Any

import pytest

from kvatlas_frontend.api.body import ChatPrompt, OpaquePrompt, ParsedBody
from kvatlas_frontend.api.errors import RefusedError
from kvatlas_frontend.api.reasons import Reason, Unrendered
from kvatlas_frontend.api.responses import Holders, parse_responses
from kvatlas_frontend.fleet.models import Dialect

USER: dict[str, Any] = {"role": "user", "content": "hi"}
CALL: dict[str, Any] = {
    "type": "function_call",
    "call_id": "1",
    "name": "f",
    "arguments": '{"a": 1}',
}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "1", "output": "ten"}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "f",
    "description": "d",
    "parameters": {"type": "object"},
    "strict": True,
}


def parsed(dialect: Dialect | None = Dialect.VLLM, **body: Any) -> ParsedBody:  # noqa: ANN401 - any JSON
    return parse_responses(json.dumps(body).encode(), dialect, "base")


def messages(dialect: Dialect | None = Dialect.VLLM, **body: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any JSON
    prompt = parsed(dialect, **body).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def test_a_text_is_the_users_and_instructions_come_first() -> None:
    for dialect in (None, *Dialect):
        assert messages(dialect, input="hi", instructions="be brief") == [
            {"role": "system", "content": "be brief"},
            USER,
        ]
    body = parsed(input="hi", cache_salt="s", store=False)
    assert (body.cache_salt, body.is_stored, body.follows) == ("s", False, None)
    assert parsed(input="hi").is_stored


def test_messages_keep_their_parts() -> None:
    image = {"type": "input_image", "image_url": "http://x/y.png"}
    given = [
        {"type": "message", **USER},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes"}], "id": "m"},
        {"role": "user", "content": [{"type": "input_text", "text": "see"}, image]},
    ]
    assert messages(None, input=given) == [
        USER,
        {"role": "assistant", "content": "yes"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
            ],
        },
    ]


def test_calls_and_tools_are_those_of_a_chat() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    body = parsed(input=[USER, CALL, OUTPUT], tools=[TOOL])
    assert isinstance(body.prompt, ChatPrompt)
    assert body.prompt.messages == [
        USER,
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "ten", "tool_call_id": "1"},
    ]
    (tool,) = body.prompt.options["tools"]
    assert list(tool["function"]) == ["name", "description", "parameters", "strict"]


def test_what_follows_a_response_is_known_to_its_engine_alone() -> None:
    body = parsed(input="hi", previous_response_id="resp_1")
    assert (body.follows, body.prompt) == ("resp_1", OpaquePrompt(Reason.HOLDER))


LEFT: list[tuple[Dialect | None, dict[str, Any], Unrendered]] = [
    (None, {"input": [USER, CALL]}, Unrendered.DIALECT),
    (Dialect.SGLANG, {"input": [OUTPUT]}, Unrendered.DIALECT),
    (Dialect.VLLM, {"input": [CALL, CALL]}, Unrendered.DIALECT),
    (None, {"tools": [TOOL]}, Unrendered.TOOLS),
    (Dialect.VLLM, {"tools": [{**TOOL, "defer_loading": True}]}, Unrendered.TOOLS),
    (Dialect.VLLM, {"tools": [{"type": "web_search"}]}, Unrendered.BUILT_IN_TOOL),
    (Dialect.VLLM, {"input": [{"type": "reasoning", "summary": []}]}, Unrendered.REASONING),
    (Dialect.VLLM, {"reasoning": {"effort": "high"}}, Unrendered.REASONING),
    (Dialect.VLLM, {"model": "openai/GPT-OSS-20b"}, Unrendered.HARMONY),
    (Dialect.VLLM, {"truncation": "auto"}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"prompt": {"id": "p"}}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"instructions": ["a"]}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"input": [{"type": "item_reference"}]}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"input": [{**CALL, "arguments": "{"}]}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"input": [{**OUTPUT, "output": []}]}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"input": [{"role": "user", "content": [{}]}]}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"input": [{**USER, "status": "incomplete"}]}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"input": [{"role": "tool", "content": "a"}]}, Unrendered.UNKNOWN_ITEM),
]


@pytest.mark.parametrize(("dialect", "body", "why"), LEFT)
def test_a_prompt_that_only_the_engine_knows_is_left_to_it(
    dialect: Dialect | None, body: dict[str, Any], why: Unrendered
) -> None:
    found = parsed(dialect, **{"input": "hi", **body}).prompt
    assert found == OpaquePrompt(Reason.ENGINE_PROMPT, why)


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{}", b'{"input": ""}', b'{"input": []}', b'{"input": [1]}', b'{"input": 1}'],
)
def test_a_body_without_input_is_refused(raw: bytes) -> None:
    with pytest.raises(RefusedError) as raised:
        parse_responses(raw, None, "base")
    assert raised.value.status == 400


def test_an_answer_without_an_id_teaches_nothing() -> None:
    holders = Holders(2)
    for begin in (b"", b'{"error": {}}', b'{"id": 5}', b'{"id": "', b'{"id": ""}', b"\xff"):
        holders.learn(begin, "http://a")
    assert holders.find("") is None
    holders.learn(b'{"id":"\xff"}', "http://a")
    assert holders.find("\ufffd") == "http://a"


def test_the_user_is_kept_for_routing() -> None:
    assert parsed(input="a", user="u").user == "u"
    assert parsed(input="a").user == ""
