"""Anthropic's `POST /v1/messages` and its `count_tokens`, as vLLM serves them.

A request becomes a chat by vLLM's rules: the blocks of `system` are joined without a separator,
tools' results become messages of their own before the rest of their turn, and reasoning is dropped,
since the mock has none.
"""

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from kvatlas_mocker.answers import Answer, Said, Usage
from kvatlas_mocker.bodies import ApiError, ChatBody, TokenizeBody, parse
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.generation import Generation, read_chat, tokenize
from kvatlas_mocker.generation_handlers import GenerationHandlers
from kvatlas_mocker.logprobs import TokenText

_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DROPPED_SYSTEM: Final = "x-anthropic-billing-header"


class Block(msgspec.Struct, kw_only=True):
    """A content block of any type."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None


class Message(msgspec.Struct, kw_only=True):
    """A turn."""

    role: str
    content: str | list[Block]


class Tool(msgspec.Struct, kw_only=True):
    """A client's tool."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """Whether a tool is called, and which."""

    type: str
    name: str | None = None


class CountBody(msgspec.Struct, kw_only=True):
    """`POST /v1/messages/count_tokens`."""

    model: str
    messages: list[Message]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None


class MessagesBody(CountBody, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: int
    stream: bool = False


class MessagesPages:
    """The handlers of these routes."""

    def __init__(self, engine: Engine, generations: GenerationHandlers) -> None:
        self._engine = engine
        self._generations = generations

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register all routes."""
        router.add_post("/v1/messages", self.create)
        router.add_post("/v1/messages/count_tokens", self.count_tokens)

    async def create(self, http: web.Request) -> web.StreamResponse:
        """Answer a conversation."""
        try:
            fault = await self._generations.begin(http)
            body = parse(await http.read(), MessagesBody)
            chat = ChatBody(
                model=body.model,
                messages=conversation(body),
                max_tokens=body.max_tokens,
                stream=body.stream,
                tools=chat_tools(body),
                tool_choice=_tool_choice(body.tool_choice),
            )
            generation = await read_chat(self._engine, chat)
            answer = MessagesAnswer(generation, self._engine.tokenizer)
            return await self._generations.generate(http, generation, answer, fault)
        except ApiError as error:
            return _refusal(error)

    async def count_tokens(self, http: web.Request) -> web.Response:
        """The tokens of the prompt that a conversation becomes."""
        try:
            body = parse(await http.read(), CountBody)
            asked = TokenizeBody(
                model=body.model, messages=conversation(body), tools=chat_tools(body)
            )
            tokens = await tokenize(self._engine, asked)
        except ApiError as error:
            return _refusal(error)
        answer = msgspec.json.encode({"input_tokens": len(tokens)})
        return web.Response(body=answer, content_type="application/json")


class MessagesAnswer(Answer):
    """A `message`: one content block, with text or with a call."""

    def __init__(self, generation: Generation, text: TokenText) -> None:
        super().__init__(generation, text, id_prefix="chatcmpl", kind="message")
        self._stop_reason: str | None = None

    def opening(self) -> bytes:
        """The begin of the message and of its block."""
        usage = {"input_tokens": self._generation.prompt_tokens, "output_tokens": 0}
        message = {**self._message([]), "usage": usage}
        script = self._generation.outputs[0].script
        if script is None or script.tool is None:
            block: dict[str, Any] = {"type": "text", "text": ""}
        else:
            block = _tool_use(script.tool, {})
        return _event("message_start", message=message) + _event(
            "content_block_start", index=0, content_block=block
        )

    def chunk(self, said: Said) -> bytes:
        """One token; the last one ends the block."""
        script = said.output.script
        if script is None or script.tool is None:
            delta = {"type": "text_delta", "text": said.text}
        else:
            delta = {"type": "input_json_delta", "partial_json": said.text}
        written = _event("content_block_delta", index=0, delta=delta)
        if said.finish_reason is None:
            return written
        self._stop_reason = _STOP_REASONS[said.finish_reason]
        return written + _event("content_block_stop", index=0)

    def closing(self, usage: Usage) -> bytes:
        """The end of the message, with its usage."""
        counts = {"input_tokens": usage.prompt, "output_tokens": usage.completion}
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        return _event("message_delta", delta=delta, usage=counts) + _event("message_stop")

    def whole(self, choices: Sequence[Sequence[Said]], usage: Usage) -> bytes:
        """The body."""
        (said,) = choices
        text = "".join(each.text for each in said)
        script = said[0].output.script
        if script is None or script.tool is None:
            block: dict[str, Any] = {"type": "text", "text": text}
        else:
            is_whole = said[-1].finish_reason != "length"
            block = _tool_use(script.tool, json.loads(text) if is_whole else {})
        self._stop_reason = _STOP_REASONS[said[-1].finish_reason or "stop"]
        document = {
            **self._message([block]),
            "stop_reason": self._stop_reason,
            "usage": {"input_tokens": usage.prompt, "output_tokens": usage.completion},
        }
        return msgspec.json.encode(document)

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._head["id"],
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._generation.model,
            "stop_reason": None,
            "stop_sequence": None,
        }


def _event(kind: str, **fields: object) -> bytes:
    document = msgspec.json.encode({"type": kind, **fields})
    return f"event: {kind}\ndata: ".encode() + document + b"\n\n"


def _tool_use(name: str, given: object) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": f"toolu_{secrets.token_hex(12)}",
        "name": name,
        "input": given,
    }  # fmt: skip


def _refusal(error: ApiError) -> web.Response:
    body = {"type": "error", "error": {"type": error.kind, "message": str(error)}}
    return web.Response(
        body=msgspec.json.encode(body), status=error.status, content_type="application/json"
    )


def conversation(body: CountBody) -> list[dict[str, Any]]:
    """The messages of the chat that a request becomes.

    Raises:
        ApiError: 400, a role or a block that the mock does not support.
    """
    messages: list[dict[str, Any]] = []
    system = body.system if isinstance(body.system, str) else _joined(body.system or [])
    if system:
        messages.append({"role": "system", "content": system})
    for message in body.messages:
        if message.role not in ("user", "assistant"):
            raise ApiError(f"role {message.role!r} is not supported", param="messages")
        messages.extend(_messages(message))
    return messages


def _joined(blocks: list[Block]) -> str:
    texts = [block.text or "" for block in blocks if block.type == "text"]
    return "".join(text for text in texts if not text.startswith(_DROPPED_SYSTEM))


def _messages(message: Message) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message.content:
        match block.type:
            case "text":
                texts.append(block.text or "")
            case "tool_use":
                arguments = json.dumps(block.input or {})
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case "tool_result":
                text = _result_text(block.content)
                result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
                results.append(result)
            case "thinking" | "redacted_thinking":
                pass
            case _:
                raise ApiError(f"blocks of type {block.type!r} are not supported")
    said: dict[str, Any] = {"role": message.role}
    if texts := [text for text in texts if text]:
        said["content"] = [{"type": "text", "text": text} for text in texts]
    if calls:
        said["tool_calls"] = calls
    return results if message.role == "user" and not texts else [*results, said]


def _result_text(content: Any) -> str:  # noqa: ANN401 - any JSON
    if content is None or isinstance(content, str):
        return content or ""
    try:
        blocks = msgspec.convert(content, list[Block])
    except msgspec.ValidationError as error:
        raise ApiError(f"tool_result: {error}", param="messages") from None
    return "\n".join(block.text or "" for block in blocks)


def chat_tools(body: CountBody) -> list[dict[str, Any]] | None:
    """The tools of the chat that a request becomes."""
    if body.tools is None:
        return None
    tools: list[dict[str, Any]] = []
    for tool in body.tools:
        parameters = {**tool.input_schema}
        parameters.setdefault("type", "object")
        function = {"name": tool.name, "description": tool.description, "parameters": parameters}
        tools.append({"type": "function", "function": function})
    return tools


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    match None if choice is None else choice.type:
        case None:
            return None
        case "auto" | "none" as kind:
            return kind
        case "any":
            return "required"
        case "tool" if choice is not None and choice.name:
            return {"type": "function", "function": {"name": choice.name}}
        case _:
            raise ApiError("tool_choice is not supported", param="tool_choice")
