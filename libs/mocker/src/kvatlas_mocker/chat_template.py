"""Renders chat messages as one prompt text.

Without a model's directory the template is our own: one line per message, and an open line for the
answer:

    <|user|>How deep?<|end|>
    <|assistant|>

Tools come first, one line each, as JSON. A call of one follows the text of its message.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, cast

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvatlas_chassis import FatalError

PLAIN_TEMPLATE = (
    "{% for tool in tools or [] %}<|tool|>{{ tool | tojson }}<|end|>\n{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<|call|>{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, variables: Mapping[str, object]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception  # pyright: ignore[reportArgumentType] - jinja2 types globals by its own defaults
        environment.globals["strftime_now"] = _strftime_now  # pyright: ignore[reportArgumentType] - the same
        self._template = environment.from_string(source)
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: object = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text.

        Raises:
            ValueError: a message has a wrong shape, or the template refuses it.
        """
        plain = [_with_plain_content(message) for message in messages]
        values = self._variables | dict(arguments or {})
        try:
            return self._template.render(
                messages=plain,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                **values,
            )
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the chat template cannot render the messages: {error}") from None


def open_template(tokenizer: str) -> ChatTemplate:
    """The template in a model's directory, or the plain one.

    Raises:
        FatalError: the directory's template cannot be read.
    """
    path = Path(tokenizer)
    if tokenizer == "bytes" or not path.is_dir():
        return ChatTemplate(PLAIN_TEMPLATE, {})
    config = _read_json(path / "tokenizer_config.json")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {str(t["name"]): t["template"] for t in cast("list[dict[str, Any]]", source)}
        source = named.get("default")
    if (path / "chat_template.jinja").is_file():
        source = (path / "chat_template.jinja").read_text()
    try:
        return ChatTemplate(str(source or PLAIN_TEMPLATE), _special_tokens(config))
    except TemplateError as error:
        raise FatalError(f"the chat template in {path} is not a template: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return cast("dict[str, Any]", json.loads(path.read_text()))
    except ValueError as error:
        raise FatalError(f"{path} is not JSON: {error}") from None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = (
                cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
            )
            if isinstance(text, str):
                tokens[name] = text
    return tokens


def _with_plain_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as templates expect it, with its text parts joined by line ends, as in vLLM."""
    if not isinstance(message.get("role"), str):
        raise ValueError("every message needs a role")  # noqa: TRY004 - one error class for all bad input
    if calls := message.get("tool_calls"):
        message = {**message, "tool_calls": _parsed_calls(calls)}
    content = message.get("content")
    if isinstance(content, list):
        texts: list[str] = []
        for part in cast("list[object]", content):
            fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
            if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
                raise ValueError("only text parts are supported in a message's content")
            texts.append(fields["text"])
        return {**message, "content": "\n".join(texts)}
    if content is not None and not isinstance(content, str):
        raise ValueError("a message's content is a text or a list of parts")
    return {**message, "content": content or ""}


def _parsed_calls(calls: object) -> list[dict[str, Any]]:
    """Tool calls with their arguments as values: clients send them as JSON text."""
    parsed: list[dict[str, Any]] = []
    for call in cast("list[object]", calls) if isinstance(calls, list) else ():
        function = cast("dict[str, Any]", call).get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise ValueError("a tool call needs a function")  # noqa: TRY004 - the same
        named = cast("dict[str, Any]", function)
        arguments: object = named.get("arguments")
        if isinstance(arguments, str):
            arguments = json.loads(arguments) if arguments else {}
        parsed.append(
            {**cast("dict[str, Any]", call), "function": {**named, "arguments": arguments}}
        )
    return parsed


def _tojson(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
