"""Reads OpenAI's `POST /v1/responses`, and converts it to the conversation that the engine renders.

vLLM (`vllm/entrypoints/openai/responses/utils.py`) and SGLang turn such a request into a chat. The
same conversation is built here. A prompt that depends on an engine's release, its flags or its
reasoning parser is left to the engine: routed by load, and counted with its reason.

Engines keep responses in their memory. So a request that goes on from one must go to the engine
that has it: `ParsedBody.follows` names it, and `Holders` remembers the engine.
"""

import json
import re
from collections import OrderedDict
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
from kvatlas_frontend.api.messages import UnrenderedError
from kvatlas_frontend.api.reasons import Reason, Refusal, Unrendered
from kvatlas_frontend.fleet.models import Dialect

BEGIN_BYTES: Final = 4096
"""How much of an answer's begin has its id: it is the first field of the first object."""

_ID: Final = re.compile(rb'"id"\s*:\s*"([^"\\]{1,256})"')
_HARMONY: Final = "gpt-oss"  # models whose prompts engines render without a template


class Holders:
    """Which engine has a response. The ids used last are kept, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._engines: OrderedDict[str, str] = OrderedDict()

    def learn(self, begin: bytes, engine_url: str) -> None:
        """Take the id from the begin of an engine's answer: an object, or a stream's first event."""
        found = _ID.search(begin)
        if found is None:
            return
        self._engines[found[1].decode(errors="replace")] = engine_url
        if len(self._engines) > self._size:
            self._engines.popitem(last=False)

    def find(self, response_id: str) -> str | None:
        """URL of the engine that has the response; None: unknown."""
        engine_url = self._engines.get(response_id)
        if engine_url is not None:
            self._engines.move_to_end(response_id)
        return engine_url


class _Body(msgspec.Struct):
    input: str | list[dict[str, Any]] | None = None
    model: str | None = None
    instructions: Any = None
    tools: list[dict[str, Any]] | None = None
    stream: bool | int | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    cache_salt: str | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    prompt: Any = None
    conversation: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    user: Any = None


_decode = msgspec.json.Decoder(_Body).decode


def parse_responses(body: bytes, dialect: Dialect | None, base_model: str) -> ParsedBody:
    """Read a request's body; `dialect`: the kind of all engines, None: unknown or mixed.

    Raises:
        RefusedError: 400; not JSON, a field of the wrong type, or no input.
    """
    with decoding():
        parsed = _decode(body)
    given = parsed.input
    if not given:
        raise RefusedError(
            Refusal.NO_PROMPT, 400, "The request has no prompt: 'input' is empty or missing",
            param="input",
        )  # fmt: skip
    if parsed.previous_response_id is not None:
        prompt: Prompt = OpaquePrompt(Reason.HOLDER)
    else:
        try:
            _check_rest(parsed, base_model)
            prompt = _conversation(parsed, given, dialect, len(body))
        except UnrenderedError as error:
            prompt = OpaquePrompt(Reason.ENGINE_PROMPT, error.reason)
    return ParsedBody(
        model=parsed.model,
        stream=bool(parsed.stream),
        cache_salt=parsed.cache_salt,
        prompt=prompt,
        batch=False,
        follows=parsed.previous_response_id,
        is_stored=parsed.store is not False,
        user=user_name(parsed.user),
    )


def stored_response(response_id: str) -> ParsedBody:
    """A request about a stored response: only the engine that has it can answer."""
    return ParsedBody(
        model=None,
        stream=False,
        cache_salt=None,
        prompt=OpaquePrompt(Reason.HOLDER),
        batch=True,
        follows=response_id,
    )


def _check_rest(body: _Body, base_model: str) -> None:
    """Fields that change the prompt in a way that only the engine knows."""
    if _HARMONY in (body.model or base_model).lower():
        raise UnrenderedError(Unrendered.HARMONY)
    if body.reasoning is not None and body.reasoning.get("effort") is not None:
        raise UnrenderedError(Unrendered.REASONING)
    if body.prompt is not None or body.conversation is not None or body.truncation == "auto":
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM)


def _conversation(
    body: _Body, given: str | list[dict[str, Any]], dialect: Dialect | None, body_bytes: int
) -> ChatPrompt:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        if not isinstance(body.instructions, str):
            raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        for item in given:
            _add_item(messages, item, dialect)
    options: dict[str, Any] = {}
    if body.tools:
        options["tools"] = [_tool(tool, dialect) for tool in body.tools]
    if body.chat_template_kwargs is not None:
        options["chat_template_kwargs"] = body.chat_template_kwargs
    return ChatPrompt(
        messages, options, add_special_tokens=False, keep_last=None, body_bytes=body_bytes
    )


def _add_item(
    messages: list[dict[str, Any]], item: dict[str, Any], dialect: Dialect | None
) -> None:
    match item.get("type", "message"):
        case "message":
            said = _message(item)
        case "function_call" if dialect is Dialect.VLLM:
            said = {"role": "assistant", "tool_calls": [_call(item)]}
        case "function_call_output" if dialect is Dialect.VLLM:
            if not isinstance(item.get("output"), str):
                raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
            said = {
                "role": "tool",
                "content": item["output"],
                "tool_call_id": item.get("call_id"),
            }
        case "function_call" | "function_call_output":
            raise UnrenderedError(Unrendered.DIALECT)
        case "reasoning":
            raise UnrenderedError(Unrendered.REASONING)
        case _:
            raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
    if said["role"] == "assistant" and messages and messages[-1]["role"] == "assistant":
        # Whether they become one message depends on the engine's release.
        raise UnrenderedError(Unrendered.DIALECT)
    messages.append(said)


def _message(item: dict[str, Any]) -> dict[str, Any]:
    role, content = item.get("role"), item.get("content")
    if item.get("status") in ("in_progress", "incomplete"):
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM)  # the engine may go on from it
    if role not in ("user", "assistant", "system", "developer"):
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
    if isinstance(content, str):
        return {"role": role, "content": content}
    if not isinstance(content, list) or not content:
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
    parts = [_part(part) for part in cast("list[object]", content)]
    if role != "assistant":
        return {"role": role, "content": parts}
    if len(parts) != 1 or parts[0]["type"] != "text":
        raise UnrenderedError(Unrendered.DIALECT)
    return {"role": role, "content": parts[0]["text"]}


def _part(given: object) -> dict[str, Any]:
    part = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    match part.get("type"):
        case "input_text" | "output_text" | "text" if isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        case "input_image":
            return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
        case _:
            raise UnrenderedError(Unrendered.UNKNOWN_ITEM)


def _call(item: dict[str, Any]) -> dict[str, Any]:
    arguments = item.get("arguments")
    if not isinstance(item.get("name"), str) or not isinstance(arguments, str):
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM)
    try:
        json.loads(arguments)
    except ValueError:
        raise UnrenderedError(Unrendered.UNKNOWN_ITEM) from None
    function = {"name": item["name"], "arguments": arguments}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _tool(tool: dict[str, Any], dialect: Dialect | None) -> dict[str, Any]:
    """A function of the client's, as vLLM gives it to the template."""
    if tool.get("type") != "function":
        raise UnrenderedError(Unrendered.BUILT_IN_TOOL)
    names = ("name", "description", "parameters", "strict")
    is_plain = isinstance(tool.get("description"), str) and isinstance(tool.get("parameters"), dict)
    if dialect is not Dialect.VLLM or not is_plain or set(tool) != {"type", *names}:
        raise UnrenderedError(Unrendered.TOOLS)
    return {"type": "function", "function": {name: tool[name] for name in names}}
