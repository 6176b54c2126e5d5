"""Anthropic's messages as conversations, by what is known of the engines."""

import json
from typing import Any

import pytest

from kvatlas_frontend.api.body import ChatPrompt, OpaquePrompt, Prompt
from kvatlas_frontend.api.errors import RefusedError
from kvatlas_frontend.api.messages import parse_messages
from kvatlas_frontend.api.reasons import Reason, Unrendered
from kvatlas_frontend.fleet.models import Dialect

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
IMAGE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AA"},
}
TOOL: dict[str, Any] = {"name": "f", "description": "d", "input_schema": {"properties": {}}}


def prompt(dialect: Dialect | None = Dialect.VLLM, **body: Any) -> Prompt:  # noqa: ANN401 - any JSON
    return parse_messages(json.dumps({"model": "m", **body}).encode(), dialect).prompt


def messages(dialect: Dialect | None = Dialect.VLLM, **body: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any JSON
    found = prompt(dialect, **body)
    assert isinstance(found, ChatPrompt)
    return found.messages


def said(role: str, *blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": list(blocks)}]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_system_blocks_are_joined_as_the_engines_join_them() -> None:
    system = [text("a"), text(""), text("b")]
    assert messages(Dialect.VLLM, messages=HELLO, system=system)[0]["content"] == "ab"
    assert messages(Dialect.SGLANG, messages=HELLO, system=system)[0]["content"] == "a\nb"
    for dialect in (None, *Dialect):
        assert messages(dialect, messages=HELLO, system=[text("a")]) == [
            {"role": "system", "content": "a"},
            *HELLO,
        ]


def test_an_image_stands_where_it_stood() -> None:
    (user,) = messages(None, messages=said("user", text("see"), IMAGE))
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    assert user == {"role": "user", "content": [text("see"), url]}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text("a"), IMAGE]}
    assert messages(messages=said("user", result)) == [
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "user", "content": [url]},
    ]


def test_a_tool_is_a_function_of_a_chat() -> None:
    found = prompt(messages=HELLO, tools=[TOOL], chat_template_kwargs={"a": 1})
    assert isinstance(found, ChatPrompt)
    function: dict[str, Any] = {
        "name": "f",
        "description": "d",
        "parameters": {"properties": {}, "type": "object"},
    }
    assert found.options == {
        "tools": [{"type": "function", "function": function}],
        "chat_template_kwargs": {"a": 1},
    }


RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "1", "content": "a"}
CALL: dict[str, Any] = {"type": "tool_use", "id": "1", "name": "f", "input": {}}


LEFT: list[tuple[Dialect | None, dict[str, Any], Unrendered]] = [
    (None, {"system": [text("a"), text("b")]}, Unrendered.DIALECT),
    (None, {"system": [text("x-anthropic-billing-header: 1")]}, Unrendered.DIALECT),
    (Dialect.SGLANG, {"system": " "}, Unrendered.DIALECT),
    (None, {"messages": said("user", text(""))}, Unrendered.DIALECT),
    (None, {"messages": said("user", text("a"), RESULT)}, Unrendered.DIALECT),
    (
        Dialect.SGLANG,
        {"messages": said("user", {**RESULT, "content": [text("a"), text("b")]})},
        Unrendered.DIALECT,
    ),
    (Dialect.VLLM, {"messages": said("assistant")}, Unrendered.DIALECT),
    (Dialect.SGLANG, {"tools": [TOOL]}, Unrendered.TOOLS),
    (Dialect.VLLM, {"tools": [{**TOOL, "defer_loading": True}]}, Unrendered.TOOLS),
    (Dialect.VLLM, {"tools": [{"name": "f", "input_schema": {}}]}, Unrendered.TOOLS),
    (Dialect.VLLM, {"tools": [{"type": "bash_1", "name": "b"}]}, Unrendered.BUILT_IN_TOOL),
    (
        Dialect.VLLM,
        {"messages": [{"role": "system", "content": "a"}]},
        Unrendered.INLINE_SYSTEM,
    ),
    (
        Dialect.VLLM,
        {"messages": said("assistant", {"type": "thinking", "thinking": "a"})},
        Unrendered.REASONING,
    ),
    (Dialect.SGLANG, {"thinking": {"type": "disabled"}}, Unrendered.REASONING),
    (Dialect.VLLM, {"output_config": {"effort": "high"}}, Unrendered.REASONING),
    (Dialect.VLLM, {"messages": said("user", {"type": "document"})}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"messages": said("user", CALL)}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"messages": said("assistant", RESULT)}, Unrendered.UNKNOWN_ITEM),
    (Dialect.VLLM, {"messages": said("user", {"type": "text"})}, Unrendered.UNKNOWN_ITEM),
    (
        Dialect.VLLM,
        {"messages": said("user", {**RESULT, "content": [{"type": "tool_reference"}]})},
        Unrendered.UNKNOWN_ITEM,
    ),
    (
        Dialect.VLLM,
        {"messages": said("assistant", {**CALL, "input": "a"})},
        Unrendered.UNKNOWN_ITEM,
    ),
]


@pytest.mark.parametrize(("dialect", "body", "why"), LEFT)
def test_a_prompt_that_only_the_engine_knows_is_left_to_it(
    dialect: Dialect | None, body: dict[str, Any], why: Unrendered
) -> None:
    assert prompt(dialect, **{"messages": HELLO, **body}) == OpaquePrompt(Reason.ENGINE_PROMPT, why)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"messages": []}',
        b'{"messages": [1]}',
        b'{"messages": [{"role": "a"}]}',
    ],
)
def test_a_body_without_messages_is_refused(raw: bytes) -> None:
    with pytest.raises(RefusedError) as raised:
        parse_messages(raw, None)
    assert raised.value.status == 400


def test_the_user_is_in_the_metadata() -> None:
    raw = {"messages": [{"role": "user", "content": "a"}], "metadata": {"user_id": "u"}}
    assert parse_messages(json.dumps(raw).encode(), None).user == "u"
