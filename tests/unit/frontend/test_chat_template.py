"""Chat templates, rendered as engines render them."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas_chassis import FatalError
from kvatlas_frontend.tokens.chat_template import (
    ChatTemplate,
    RenderError,
    is_text_only,
    load_template,
    special_tokens,
)

STRING_TEMPLATE = """\
{{ bos_token }}{% for message in messages %}
    <{{ message.role }}>{{ message['content'] }}</>
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""
PARTS_TEMPLATE = """\
{% for message in messages %}<{{ message.role }}>\
{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}\
{% else %}<image>{% endif %}{% endfor %}</>{% endfor %}"""
NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, now=lambda: NOON)


def render(source: str, *messages: dict[str, Any], **options: object) -> str:
    text, whole = template(source).render(messages, options)
    assert whole
    return text


USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_blocks_leave_no_white_space_behind() -> None:
    """`trim_blocks` and `lstrip_blocks`, as the models' authors assume."""
    assert render(STRING_TEMPLATE, USER) == "<s>    <user>hi</>\n<assistant>"


def test_the_generation_prompt_can_be_left_out() -> None:
    assert render(STRING_TEMPLATE, USER, add_generation_prompt=False) == "<s>    <user>hi</>\n"


def test_text_parts_are_joined_where_the_template_reads_a_string() -> None:
    message = {"role": "user", "content": [text("one"), text("two"), "three"]}
    assert "<user>one\ntwo\nthree</>" in render(STRING_TEMPLATE, message)


def test_parts_are_kept_where_the_template_loops_over_them() -> None:
    assert render(PARTS_TEMPLATE, {"role": "user", "content": [text("one"), text("two")]}) == (
        "<user>onetwo</>"
    )
    assert render(PARTS_TEMPLATE, USER) == "<user>hi</>"


def test_a_loop_over_a_variable_that_holds_the_content_is_seen() -> None:
    source = (
        "{% for m in messages %}{% set content = m['content'] %}"
        "{% for part in content %}[{{ part.text }}]{% endfor %}{% endfor %}"
    )
    assert render(source, USER) == "[hi]"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PARTS_TEMPLATE, "<user>first</><user>look: "),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}",
            "<user>first</><user>",
        ),
    ],
)
def test_a_prompt_ends_before_its_first_item(source: str, expected: str) -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": [text("look: "), IMAGE, text("well?")]},
        {"role": "user", "content": "later"},
    ]
    assert template(source).render(messages, {}) == (expected, False)
    assert not is_text_only(messages)


def test_no_content_is_an_empty_one() -> None:
    message = {"role": "assistant", "content": None}
    assert render("{{ messages[0].content }}|", message) == "|"


def test_tool_calls_are_objects_and_tools_are_plain_json() -> None:
    source = (
        "{{ messages[0].tool_calls[0].function.arguments.city }} "
        "{{ tools | tojson }} {{ tools | tojson(indent=1) }}"
    )
    call = {"function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert render(source, message, tools=[{"a": "<ü>"}]) == (
        'Köln [{"a": "<ü>"}] [\n {\n  "a": "<ü>"\n }\n]'
    )


def test_template_arguments_of_the_request_are_passed() -> None:
    source = "{% if thinking %}<think>{% endif %}{{ strftime_now('%d %b %Y') }}"
    assert render(source, USER, chat_template_kwargs={"thinking": True}) == "<think>21 Nov 2026"


def test_loop_controls_work() -> None:
    source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}x{% endfor %}"
    assert render(source, USER, USER) == "x"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ 1 / 0 }}",
        "{{ undefined_thing.attribute }}",
    ],
)
def test_what_a_template_must_not_do_or_refuses_is_a_render_error(source: str) -> None:
    with pytest.raises(RenderError):
        template(source).render([USER], {})


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": 5},
        {"role": "user", "content": [5]},
        {"role": "assistant", "tool_calls": [5]},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": r'{"a": "\ud800"}'}}]},
    ],
)
def test_messages_of_no_known_shape_are_a_render_error(message: dict[str, Any]) -> None:
    with pytest.raises(RenderError):
        template(STRING_TEMPLATE).render([message], {})


def test_a_directory_gives_template_and_special_tokens(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
        "chat_template": [
            {"name": "tool_use", "template": "wrong"},
            {"name": "default", "template": "{{ bos_token }}{{ eos_token }}"},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = load_template(tmp_path, now=lambda: NOON)
    assert loaded is not None
    assert loaded.render([USER], {}) == ("<s></s>", True)
    assert special_tokens(config) == {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "chat_template.jinja").write_text("of its own file {{ bos_token }}")
    own = load_template(tmp_path, now=lambda: NOON)
    assert own is not None
    assert own.render([USER], {}) == ("of its own file <s>", True)


def test_a_directory_without_a_template_has_none(tmp_path: Path) -> None:
    assert load_template(tmp_path, now=lambda: NOON) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer_config.json", "{"), ("chat_template.jinja", "{% for %}")],
)
def test_a_broken_file_is_named_in_one_line(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(FatalError, match=str(tmp_path)) as raised:
        load_template(tmp_path, now=lambda: NOON)
    assert "\n" not in str(raised.value)
