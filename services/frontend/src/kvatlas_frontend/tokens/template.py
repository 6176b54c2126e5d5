"""A model's chat template, rendered as vLLM renders it, in a sandbox.

The template comes with the model and the messages from a client, so the environment is Jinja2's
immutable sandbox: no attribute of Python's own is reachable and nothing can be changed. What a
template may use beyond that (loop controls, `raise_exception`, `strftime_now`, `tojson`) is what
`transformers` gives it.
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

# What rendering can raise besides a template's own refusal: it computes with what a client sent.
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
    """The template refuses this conversation; the engine will say so to the client."""


class ChatTemplate:
    """Renders conversations. Pure but for `now`, which templates may print."""

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

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        functions = cast("dict[str, object]", environment.globals)
        functions.update(raise_exception=_raise_exception, strftime_now=strftime_now)
        try:
            self._template = environment.from_string(source)
            self._content_is_list = _reads_content_parts(environment.parse(source))
        except TemplateError as error:
            raise RenderError(str(error)) from None
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> tuple[str, bool]:
        """The prompt's text, and whether it is whole.

        It is cut before the first multimodal item: what an engine puts there is not known here.

        Raises:
            RenderError: the template or the shape of a message refuses it.
        """
        prepared, whole = self._prepare(messages)
        values: dict[str, Any] = {
            **self._special_tokens,
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
                break  # nothing behind the first item is looked at
        return prepared, whole

    def _content(self, content: object) -> tuple[object, bool]:
        """A message's content in the shape the template reads, and whether it is text alone."""
        if content is None:
            return ([] if self._content_is_list else ""), True
        if isinstance(content, str):
            if self._content_is_list:
                return [{"type": "text", "text": content}], True
            return content, True
        if not isinstance(content, list):
            raise RenderError("a message's content is neither text nor a list of parts")
        texts, whole = _leading_texts(cast("list[object]", content))
        if self._content_is_list:
            parts = [*texts] if whole else [*texts, MULTIMODAL_MARK]
            return [{"type": "text", "text": text} for text in parts], whole
        # In one string, engines put the items before the message's text.
        return ("\n".join(texts) if whole else MULTIMODAL_MARK), whole


def load_template(directory: Path, *, now: Callable[[], dt.datetime]) -> ChatTemplate | None:
    """The template of a model's directory; None: it has none.

    Raises:
        FatalError: a file is there but cannot be used; one line names it.
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
        template_file.read_text() if template_file.exists() else _source(config["chat_template"])
        if config.get("chat_template") else None
    )  # fmt: skip
    if source is None:
        return None
    try:
        return ChatTemplate(source, special_tokens(config), now=now)
    except RenderError as error:
        raise FatalError(
            f"--tokenizer {directory}: the chat template is invalid: {error}"
        ) from None


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like, as a template sees them, from a `tokenizer_config.json`."""
    tokens: dict[str, str] = {}
    for name, value in config.items():
        if not name.endswith("_token"):
            continue
        if isinstance(value, str):
            tokens[name] = value
        elif isinstance(value, dict) and "content" in value:
            tokens[name] = str(cast("dict[str, Any]", value)["content"])
    return tokens


def is_text_alone(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no message holds a multimodal item."""
    return all(
        _leading_texts(cast("list[object]", content))[1]
        for message in messages
        if isinstance(content := message.get("content"), list)
    )


def _source(template: object) -> str | None:
    """One template, or the one called `default` of several."""
    if isinstance(template, str):
        return template
    if isinstance(template, list):
        for entry in cast("list[dict[str, Any]]", template):
            if entry.get("name") == "default":
                return str(entry["template"])
    return None


def _leading_texts(parts: list[object]) -> tuple[list[str], bool]:
    """The text parts up to the first item that is none."""
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
    """A tool call whose arguments are an object: clients send them as JSON text."""
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
    except ValueError:
        raise RenderError("a tool call's arguments are no JSON") from None
    return {**table, "function": {**named, "arguments": parsed}}


def _reads_content_parts(template: nodes.Template) -> bool:
    """Whether the template loops over a message's content: then it wants a list of parts."""
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
    """Jinja2's own filter escapes HTML, which would change the prompt."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
