"""The native renderer of a chat template, used only where it agrees with Jinja2.

The renderer leaves what it cannot do exactly to Jinja2, one conversation at a time. This self-check is
the second line of defence: a set of conversations must give the same texts. A conversation that
Jinja2 refuses must be refused, and one that Jinja2 renders must be rendered alike or left to it.
"""

import datetime as dt
import json
import logging
from collections.abc import Iterator
from typing import Any, Final

from jinja2 import meta

from kvatlas_frontend.api.body import ChatPrompt, parse_body
from kvatlas_frontend.tokens.chat_template import ChatTemplate, RenderError
from kvatlas_frontend.tokens.template_tree import template_tree
from kvatlas_native import TemplateRenderer

log = logging.getLogger(__name__)

_CHECKED_AT: Final = dt.datetime(2026, 11, 21, 12, 34, 56, tzinfo=dt.UTC)
_NOW: Final = (2026, 11, 21, 12, 34, 56, 6)
_VARIABLES_MAX: Final = 24  # names of a template that are tried as `chat_template_kwargs`


def _text(role: str, content: object, **fields: object) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def _call(name: str, arguments: object) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": "call00001", "type": "function", "function": function}


_USER: Final = _text("user", "How is the weather in Köln — 東京? 🙂")
_SYSTEM: Final = _text("system", '  You are\n\na <b>careful</b> "assistant".\t')
_ANSWER: Final = _text("assistant", "<think>\nHm.\n</think>\n\nIt rains.")
_TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The weather\'s forecast: "now" or later',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "a city", "enum": ["Köln", "東京"]},
                    "days": {"type": "integer", "default": 3},
                    "items": {"type": "array", "items": {"type": "number", "minimum": 0.5}},
                    "exact": {"type": ["boolean", "null"], "default": None},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]
_DOCUMENTS: Final[list[dict[str, Any]]] = [
    {"title": "One", "text": "first\nsecond"},
    {"title": "", "text": "naïve"},
]
_CALLING: Final = _text(
    "assistant",
    None,
    tool_calls=[_call("get_weather", '{"city": "Köln", "days": 2, "exact": true, "x": 1.5}')],
)
_CALLING_TWICE: Final = _text(
    "assistant", "Let me see.", tool_calls=[_call("now", ""), _call("now", {"zone": None})]
)
_RESULT: Final = _text("tool", '{"rain": [1, 2.5]}', tool_call_id="call00001", name="get_weather")
_PARTS: Final = _text("user", [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}])
_IMAGE: Final = _text(
    "user",
    [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
)
_CONVERSATIONS: Final[tuple[list[dict[str, Any]], ...]] = (
    [_USER],
    [_SYSTEM, _USER],
    [_SYSTEM],
    [_USER, _ANSWER, _text("user", "And now?\n")],
    [_SYSTEM, _USER, _ANSWER, _text("user", ""), _ANSWER],
    [_USER, _CALLING, _RESULT],
    [_SYSTEM, _USER, _CALLING, _RESULT, _ANSWER, _USER],
    [_USER, _CALLING_TWICE, _RESULT, _RESULT, _ANSWER],
    [_USER, _text("assistant", "So.", reasoning_content="Why?\n"), _USER],
    [_USER, _text("assistant", None), _USER],
    [_PARTS, _ANSWER, _text("user", [])],
    [_USER, _ANSWER, _IMAGE, _USER],
    [_text("developer", "Be brief."), _USER],
    [_text("critic", "Odd.", name="bob"), _USER],
    [_ANSWER, _USER],
    [_USER, _USER],
    [_USER, _ANSWER] * 12 + [_USER],
    [{"role": "user"}],
    [{"content": "no role"}],
)
_FIELDS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"add_generation_prompt": False},
    {"tools": _TOOLS},
    {"tools": []},
    {"documents": _DOCUMENTS},
    {"tools": _TOOLS, "documents": _DOCUMENTS, "add_generation_prompt": False},
)


def native_renderer(template: ChatTemplate) -> TemplateRenderer | None:
    """The native renderer of a template; None: Python must render it, and why stands in the log."""
    try:
        renderer = TemplateRenderer(
            template_tree(template.tree),
            special_tokens=template.special_tokens,
            content_is_list=template.content_is_list,
        )
    except ValueError as error:
        log.warning("the chat template is rendered by Python, which is slower: %s", error)
        return None
    why = first_difference(renderer, template)
    if why is not None:
        log.warning("the chat template is rendered by Python, which is slower: %s", why)
        return None
    return renderer


def first_difference(renderer: TemplateRenderer, template: ChatTemplate) -> str | None:
    """Why the renderer cannot stand in for Jinja2; None: it can."""
    reference = template.with_clock(lambda: _CHECKED_AT)
    rendered = left = 0
    for body in _bodies(template):
        encoded = json.dumps(body).encode()
        ours = renderer.render(encoded, _NOW)
        theirs = _by_jinja2(reference, encoded)
        if ours is not None and ours != theirs:
            return f"another text for {encoded[:200].decode()}"
        rendered += theirs is not None
        left += theirs is not None and ours is None
    if rendered and left == rendered:
        return "no conversation can be rendered without it"
    return None


def _by_jinja2(template: ChatTemplate, body: bytes) -> tuple[str, bool] | None:
    prompt = parse_body("chat", body).prompt
    assert isinstance(prompt, ChatPrompt)  # noqa: S101 - of that route
    try:
        return template.render(prompt.messages, prompt.options)
    except RenderError:
        return None


def _bodies(template: ChatTemplate) -> Iterator[dict[str, Any]]:
    for messages in _CONVERSATIONS:
        for fields in _FIELDS:
            yield {"messages": messages, **fields}
    named = sorted(meta.find_undeclared_variables(template.tree) - {"messages"})
    for name in named[:_VARIABLES_MAX]:
        for value in (True, False, None, "medium", 3, ["a", "b"], {"a": "b"}):
            for messages in ([_SYSTEM, _USER, _ANSWER, _USER], [_USER, _CALLING, _RESULT]):
                yield {
                    "messages": messages,
                    "tools": _TOOLS,
                    "chat_template_kwargs": {name: value},
                }
