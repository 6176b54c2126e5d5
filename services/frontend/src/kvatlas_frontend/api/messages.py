"""Reads Anthropic's `POST /v1/messages`, and converts it to the conversation that the engine renders.

vLLM (`vllm/entrypoints/anthropic/serving.py`) and SGLang (`sglang/srt/entrypoints/anthropic/`) turn
such a request into a chat request, with rules of their own. Where the two agree, or the fleet's
engines are known to be of one kind, the same conversation is built here, so that its tokens are
those of the engine. Everything else is routed by load and counted with its reason: what depends on
an engine's release, its flags or its reasoning parser.
"""

import json
from typing import Any, Final, cast

import msgspec

from kvatlas_frontend.api.body import (
    ChatPrompt,
    OpaquePrompt,
    ParsedBody,
    Prompt,
    decoding,
    user_name,
)
from kvatlas_frontend.api.errors import RefusedError
from kvatlas_frontend.api.reasons import Reason, Refusal, Unrendered
from kvatlas_frontend.fleet.models import Dialect

# Claude Code opens its system prompt with a block that differs from request to request; vLLM drops
# it, since no prefix would ever be found again.
_DROPPED_SYSTEM: Final = "x-anthropic-billing-header"


class UnrenderedError(Exception):
    """Only the engine knows which prompt this request becomes."""

    def __init__(self, reason: Unrendered) -> None:
        super().__init__(reason.value)
        self.reason = reason


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]


class _Body(msgspec.Struct):
    messages: list[_Message] | None = None
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    stream: bool | int | None = None
    thinking: Any = None
    output_config: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Body).decode


def parse_messages(body: bytes, dialect: Dialect | None) -> ParsedBody:
    """Read a request's body; `dialect`: the kind of all engines, None: unknown or mixed.

    Raises:
        RefusedError: 400; not JSON, a field of the wrong type, or no message.
    """
    with decoding():
        parsed = _decode(body)
    if not parsed.messages:
        raise RefusedError(
            Refusal.NO_PROMPT, 400, "messages: at least one message is required", param="messages"
        )
    try:
        prompt: Prompt = _conversation(parsed, parsed.messages, dialect, len(body))
    except UnrenderedError as error:
        prompt = OpaquePrompt(Reason.ENGINE_PROMPT, error.reason)
    metadata = parsed.metadata or {}
    return ParsedBody(
        model=parsed.model,
        stream=bool(parsed.stream),
        cache_salt=None,
        prompt=prompt,
        batch=False,
        user=user_name(metadata.get("user_id")),
    )


def _conversation(
    body: _Body, messages: list[_Message], dialect: Dialect | None, body_bytes: int
) -> ChatPrompt:
    if body.output_config is not None and body.output_config.get("effort") is not None:
        raise UnrenderedError(Unrendered.REASONING)
    if body.thinking is not None and dialect is not Dialect.VLLM:
        raise UnrenderedError(Unrendered.REASONING)  # vLLM has no such field
    converted: list[dict[str, Any]] = []
    system = _system(body.system, dialect)
    if system:
        converted.append({"role": "system", "content": system})
    for message in messages:
        _add_message(converted, message, dialect)
    options: dict[str, Any] = {}
    if body.tools:
        options["tools"] = [_tool(tool, dialect) for tool in body.tools]
    if body.chat_template_kwargs is not None:
        options["chat_template_kwargs"] = body.chat_template_kwargs
    return ChatPrompt(
        converted, options, add_special_tokens=False, keep_last=None, body_bytes=body_bytes
    )


def _system(system: str | list[dict[str, Any]] | None, dialect: Dialect | None) -> str:
    """The system prompt. vLLM joins its blocks with nothing between, SGLang with line ends."""
    if system is None or isinstance(system, str):
        if system and not system.strip():
            raise UnrenderedError(Unrendered.DIALECT)
        return system or ""
    texts = [_text(block) for block in system]
    if any(text.startswith(_DROPPED_SYSTEM) for text in texts):
        if dialect is not Dialect.VLLM:
            raise UnrenderedError(Unrendered.DIALECT)
        texts = [text for text in texts if not text.startswith(_DROPPED_SYSTEM)]
    texts = [text for text in texts if text]
    if dialect is None and len(texts) != 1:
        raise UnrenderedError(Unrendered.DIALECT)
    return ("\n" if dialect is Dialect.SGLANG else "").join(texts)


def _add_message(
    converted: list[dict[str, Any]], message: _Message, dialect: Dialect | None
) -> None:
    """Append what a message becomes."""
    if message.role not in ("user", "assistant"):
        raise UnrenderedError(Unrendered.INLINE_SYSTEM)
    if isinstance(message.content, str):
        converted.append({"role": message.role, "content": message.content})
    elif message.role == "user":
        converted.extend(_user(message.content, dialect))
    else:
        converted.append(_assistant(message.content, dialect))


def _user(blocks: list[dict[str, Any]], dialect: Dialect | None) -> list[dict[str, Any]]:
    """The results of tools, as messages of their own, and the rest behind them."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            if parts and dialect is not Dialect.VLLM:
                raise UnrenderedError(Unrendered.DIALECT)  # vLLM puts results first
            results.extend(_result(block, dialect))
        else:
            parts.extend(_parts(block, dialect))
    return [*results, {"role": "user", "content": _content(parts)}] if parts else results


def _assistant(blocks: list[dict[str, Any]], dialect: Dialect | None) -> dict[str, Any]:
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    parts = [
        part
        for block in blocks
        if block.get("type") != "tool_use"
        for part in _parts(block, dialect)
    ]
    if not parts and not calls:
        raise UnrenderedError(Unrendered.DIALECT)
    said: dict[str, Any] = {"role": "assistant"}
    if parts:
        said["content"] = _content(parts)
    if calls:
        said["tool_calls"] = calls
    return said


def _parts(block: dict[str, Any], dialect: Dialect | None) -> list[dict[str, Any]]:
    """The parts of a chat message that a block of text or an image becomes."""
    match block.get("type"):
        case "text":
            if text := _text(block):
                return [{"type": "text", "text": text}]
            if dialect is not Dialect.VLLM:
                raise UnrenderedError(Unrendered.DIALECT)  # vLLM drops it
            return []
        case "image":
            return [_image(block)]
        case "thinking" | "redacted_thinking":
            raise UnrenderedError(Unrendered.REASONING)
        case _:
            raise UnrenderedError(Unrendered.UNKNOWN_ITEM)


def _content(parts: list[dict[str, Any]]) -> object:
    """A single text is a string, as both engines have it."""
    is_text = len(parts) == 1 and parts[0]["type"] == "text"
    return parts[0]["text"] if is_text else parts


def _call(block: dict[str, Any]) -> dict[str, Any]:
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str) or not isinstance(given, dict) or not block.get("id"):
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
    function = {"name": name, "arguments": json.dumps(given)}
    return {"id": block["id"], "type": "function", "function": function}


def _result(block: dict[str, Any], dialect: Dialect | None) -> list[dict[str, Any]]:
    """The message of a tool's result; behind it, in vLLM, one with the result's images."""
    content = block.get("content")
    said: dict[str, Any] = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    if content is None or isinstance(content, str):
        return [{**said, "content": content or ""}]
    if not isinstance(content, list):
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    for each in cast("list[object]", content):
        item = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        if item.get("type") == "text":
            texts.append(_text(item))
        elif item.get("type") == "image" and dialect is Dialect.VLLM:
            images.append(_image(item))
        else:
            raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
    if dialect is not Dialect.VLLM and (len(texts) != 1 or not texts[0]):
        raise UnrenderedError(Unrendered.DIALECT)
    messages = [{**said, "content": "\n".join(texts)}]
    return [*messages, {"role": "user", "content": images}] if images else messages


def _image(block: dict[str, Any]) -> dict[str, Any]:
    """An image; the prompt is known up to it."""
    source = block.get("source")
    if not isinstance(source, dict):
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
    named = cast("dict[str, Any]", source)
    if named.get("type") == "url":
        url = named.get("url")
    else:
        url = f"data:{named.get('media_type', 'image/jpeg')};base64,{named.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _text(block: dict[str, Any]) -> str:
    text = block.get("text")
    if block.get("type") != "text" or not isinstance(text, str):
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
    return text


def _tool(tool: dict[str, Any], dialect: Dialect | None) -> dict[str, Any]:
    """A tool of the client's own, as vLLM gives it to the template."""
    if tool.get("type") not in (None, "custom"):
        raise UnrenderedError(Unrendered.BUILT_IN_TOOL)
    name, text, schema = (tool.get(key) for key in ("name", "description", "input_schema"))
    is_plain = isinstance(name, str) and isinstance(text, str) and isinstance(schema, dict)
    if dialect is not Dialect.VLLM or not is_plain or tool.get("defer_loading"):
        raise UnrenderedError(Unrendered.TOOLS)
    parameters = {**cast("dict[str, Any]", schema)}
    parameters.setdefault("type", "object")
    function = {"name": name, "description": text, "parameters": parameters}
    return {"type": "function", "function": function}
