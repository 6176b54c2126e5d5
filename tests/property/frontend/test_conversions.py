"""Messages and responses become the same prompt here and in an engine, or are left to it.

The mock engine converts by itself, as an engine does; its plain template shows roles, texts, tools
and calls.
"""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvatlas_frontend.api.body import ChatPrompt, Prompt
from kvatlas_frontend.api.messages import parse_messages
from kvatlas_frontend.api.responses import parse_responses
from kvatlas_frontend.fleet.models import Dialect
from kvatlas_mocker import messages, responses
from kvatlas_mocker.chat_template import PLAIN_TEMPLATE, ChatTemplate

TEMPLATE = ChatTemplate(PLAIN_TEMPLATE, {})

texts = st.text(st.characters(codec="utf-8"), max_size=6)
names = st.sampled_from(["f", "weather", "\u00fc"])
values = st.dictionaries(texts, st.integers(-9, 9) | texts | st.none(), max_size=3)


def block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


text_blocks = block("text", text=texts)
results = block(
    "tool_result", tool_use_id=names, content=texts | st.lists(text_blocks, max_size=3) | st.none()
)
calls = block("tool_use", id=names, name=names, input=values)
turns = st.one_of(
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": texts | st.lists(text_blocks | results, max_size=4)}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": texts | st.lists(text_blocks | calls, max_size=4)}
    ),
)
tools = st.lists(
    st.fixed_dictionaries({"name": names, "description": texts, "input_schema": values}), max_size=2
)
requests = st.fixed_dictionaries(
    {"messages": st.lists(turns, min_size=1, max_size=5)},
    optional={"system": texts | st.lists(text_blocks, max_size=3), "tools": tools},
)

items = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "developer", "assistant"]),
            "content": texts | st.lists(block("input_text", text=texts), max_size=3),
        }
    ),
    block("function_call", call_id=names, name=names, arguments=values.map(json.dumps)),
    block("function_call_output", call_id=names, output=texts),
)
functions = st.lists(
    block("function", name=names, description=texts, parameters=values, strict=st.booleans()),
    max_size=2,
)


def rendered(prompt: Prompt) -> str | None:
    """The prompt; None: it is left to the engine."""
    if not isinstance(prompt, ChatPrompt):
        return None
    return render(prompt.messages, prompt.options.get("tools"))


def render(conversation: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    return TEMPLATE.render(conversation, add_generation_prompt=True, tools=tools or None)


@given(requests)
def test_messages(asked: dict[str, Any]) -> None:
    raw = json.dumps({"model": "m", "max_tokens": 1, **asked}).encode()
    prompt = rendered(parse_messages(raw, Dialect.VLLM).prompt)
    if prompt is not None:
        body = msgspec.json.decode(raw, type=messages.MessagesBody)
        assert prompt == render(messages.conversation(body), messages.chat_tools(body))
    agreed = rendered(parse_messages(raw, None).prompt)
    if agreed is not None:
        assert agreed == prompt == rendered(parse_messages(raw, Dialect.SGLANG).prompt)


@given(st.lists(items, min_size=1, max_size=5), functions)
def test_responses(given_items: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
    raw = json.dumps({"input": given_items, "tools": tools}).encode()
    prompt = rendered(parse_responses(raw, Dialect.VLLM, "m").prompt)
    if prompt is not None:
        body = msgspec.json.decode(raw, type=responses.ResponsesBody)
        conversation = responses.chat_messages(body.input)
        assert prompt == render(conversation, responses.chat_tools(body.tools))
    assert rendered(parse_responses(raw, None, "m").prompt) in (None, prompt)
