"""Renders a model's chat template as vLLM does, in a sandbox.

The template comes with the model and the messages come from a client. So the environment is
Jinja2's immutable sandbox: Python's own attributes are out of reach and nothing can be changed.
Beyond that, a template may use what `transformers` offers: loop controls, `raise_exception`,
`strftime_now` and `tojson`.
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvatlas_chassis import FatalError

MULTIMODAL_MARK: Final = "\uf8f0kvatlas-item\uf8f0"  # private-use characters: in no prompt
_MESSAGE_FIELDS_AS_WRITTEN: Final = frozenset(("role", "name", "tool_call_id", "reasoning_content"))

# Errors of rendering besides a template's own refusal: it computes with a client's values.
_RENDER_ERRORS: Final = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class RenderError(Exception):
    """The template refuses this conversation; the engine will report that to the client."""


class ChatTemplate:
    """Renders conversations. Pure except for `now`, which templates may print."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], dt.datetime],
    ) -> None:
        """Compile.

        Raises:
            RenderError: the source is no template.
        """

        def strftime_now(text: str) -> str:
            return now().strftime(text)

        self._source = source
        self.special_tokens: Final = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        functions = cast("dict[str, object]", environment.globals)
        functions.update(raise_exception=_raise_exception, strftime_now=strftime_now)
        try:
            self._template = environment.from_string(source)
            self.tree: Final = environment.parse(source)
        except TemplateError as error:
            raise RenderError(str(error)) from None
        # Whether the template takes a message's content as a list of parts.
        self.content_is_list: Final = _reads_content_parts(self.tree)

    def with_clock(self, now: Callable[[], dt.datetime]) -> "ChatTemplate":
        """The same template at another time."""
        return ChatTemplate(self._source, self.special_tokens, now=now)

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> tuple[str, bool]:
        """The prompt's text, and whether it is whole.

        The text ends before the first multimodal item, whose tokens only the engine knows.

        Raises:
            RenderError: the template refuses the conversation, or a message has a wrong shape.
        """
        prepared, whole = self._prepare(messages)
        values: dict[str, Any] = {
            **self.special_tokens,
            "add_generation_prompt": options.get("add_generation_prompt", True),
            "tools": options.get("tools"),
            "documents": options.get("documents"),
            **cast("dict[str, Any]", options.get("chat_template_kwargs") or {}),
            "messages": prepared,
        }
        try:
            text = self._template.render(values)
        except _RENDER_ERRORS as error:
            raise RenderError(str(error)) from None
        if whole:
            return text, True
        return text.partition(MULTIMODAL_MARK)[0], False

    def _prepare(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
        prepared: list[dict[str, Any]] = []
        whole = True
        for message in messages:
            content, plain = self._content(message.get("content"))
            prepared.append(_with_content(message, content))
            whole = whole and plain
            if not plain:
                break  # the text ends at the first item
        return prepared, whole

    def _content(self, content: object) -> tuple[object, bool]:
        """A message's content in the shape the template reads, and whether it is text alone."""
        if content is None:
            return ([] if self.content_is_list else ""), True
        if isinstance(content, str):
            if self.content_is_list:
                return [{"type": "text", "text": content}], True
            return content, True
        if not isinstance(content, list):
            raise RenderError("a message's content is neither text nor a list of parts")
        texts, whole = _leading_texts(cast("list[object]", content))
        if self.content_is_list:
            parts = [*texts] if whole else [*texts, MULTIMODAL_MARK]
            return [{"type": "text", "text": text} for text in parts], whole
        # For a template that takes a string, engines put the items before the message's text.
        return ("\n".join(texts) if whole else MULTIMODAL_MARK), whole


def load_template(directory: Path, *, now: Callable[[], dt.datetime]) -> ChatTemplate | None:
    """The template in a model's directory; None: there is none.

    Raises:
        FatalError: a file exists but cannot be used; the message names it.
    """
    config_file = directory / "tokenizer_config.json"
    config: dict[str, Any] = {}
    if config_file.exists():
        try:
            config = json.loads(config_file.read_bytes())
        except (OSError, ValueError) as error:
            raise FatalError(f"--tokenizer {config_file}: {error}") from None
    template_file = directory / "chat_template.jinja"
    source = (
        template_file.read_text()
        if template_file.exists()
        else _default_template(config.get("chat_template"))
    )
    if source is None:
        return None
    try:
        return ChatTemplate(source, special_tokens(config), now=now)
    except RenderError as error:
        raise FatalError(
            f"--tokenizer {directory}: the chat template is invalid: {error}"
        ) from None


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens (`bos_token` and so on) of a `tokenizer_config.json`, for a template."""
    tokens: dict[str, str] = {}
    for name, value in config.items():
        if not name.endswith("_token"):
            continue
        if isinstance(value, str):
            tokens[name] = value
        elif isinstance(value, dict) and "content" in value:
            tokens[name] = str(cast("dict[str, Any]", value)["content"])
    return tokens


def is_text_only(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no message holds a multimodal item."""
    return all(
        _leading_texts(cast("list[object]", content))[1]
        for message in messages
        if isinstance(content := message.get("content"), list)
    )


def _default_template(template: object) -> str | None:
    """The only template, or the one named `default` of several."""
    if isinstance(template, str):
        return template or None
    if isinstance(template, list):
        for entry in cast("list[dict[str, Any]]", template):
            if entry.get("name") == "default":
                return str(entry["template"])
    return None


def _leading_texts(parts: list[object]) -> tuple[list[str], bool]:
    """The text parts before the first multimodal item, and whether there is no such item."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise RenderError("a message's content part is neither text nor an object")
        table = cast("dict[str, Any]", part)
        text = table.get("text", table.get("refusal"))
        if not isinstance(text, str):
            return texts, False
        texts.append(text)
    return texts, True


def _with_content(message: Mapping[str, Any], content: object) -> dict[str, Any]:
    prepared: dict[str, Any] = {
        name: value
        for name, value in message.items()
        if name in _MESSAGE_FIELDS_AS_WRITTEN and value is not None
    }
    prepared["content"] = content
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        prepared["tool_calls"] = [_with_arguments(call) for call in cast("list[Any]", calls)]
    return prepared


def _with_arguments(call: object) -> object:
    """A tool call with its arguments parsed: clients send them as JSON text."""
    if not isinstance(call, dict):
        raise RenderError("a tool call is no object")
    table = cast("dict[str, Any]", call)
    function: object = table.get("function")
    if not isinstance(function, dict):
        return table
    named = cast("dict[str, Any]", function)
    arguments: object = named.get("arguments")
    if not isinstance(arguments, str):
        return table
    try:
        parsed: object = json.loads(arguments) if arguments else {}
        if "\\u" in arguments:  # an escape can be half of a surrogate pair, which is no text
            json.dumps(parsed, ensure_ascii=False).encode()
    except ValueError:
        raise RenderError("a tool call's arguments are not valid JSON") from None
    return {**table, "function": {**named, "arguments": parsed}}


def _reads_content_parts(template: nodes.Template) -> bool:
    """Whether the template loops over a message's content, so that it takes a list of parts."""
    names = {
        target.name
        for assign in template.find_all(nodes.Assign)
        if isinstance(target := assign.target, nodes.Name) and _is_content(assign.node, set())
    }
    return any(_is_content(loop.iter, names) for loop in template.find_all(nodes.For))


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _is_content(node.node, names)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateRuntimeError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - the same
) -> str:
    """JSON without the HTML escapes of Jinja2's own filter, which would change the prompt."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
