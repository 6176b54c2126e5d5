"""OpenAI's Responses API, as vLLM serves it: stored in the engine's memory, followed by their ids.

A request becomes a chat by vLLM's rules: `instructions` are a system message that later responses
do not inherit, and the output of the response before becomes the assistant's messages.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from aiohttp import web

from kvatlas_mocker.answers import Answer, Said, Usage
from kvatlas_mocker.bodies import ApiError, ChatBody, parse
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.generation import Generation, read_chat
from kvatlas_mocker.generation_handlers import GenerationHandlers
from kvatlas_mocker.logprobs import TokenText

_STORED_MAX: Final = 10_000


class Tool(msgspec.Struct, kw_only=True):
    """A function; others are refused."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    """`POST /v1/responses`."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool = True
    stream: bool = False
    background: bool = False
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    cache_salt: str | None = None
    metadata: dict[str, Any] | None = None


class Stored(msgspec.Struct):
    """A response with the conversation before it; `document` is None until it has ended."""

    messages: list[dict[str, Any]]
    document: dict[str, Any] | None = None


class ResponsesPages:
    """The handlers of these routes, and the responses that they keep: the newest 10,000."""

    def __init__(self, engine: Engine, generations: GenerationHandlers) -> None:
        self._engine = engine
        self._generations = generations
        self._stored: OrderedDict[str, Stored] = OrderedDict()

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register all routes."""
        router.add_post("/v1/responses", self.create)
        router.add_get("/v1/responses/{id}", self.retrieve)
        router.add_delete("/v1/responses/{id}", self.delete)
        router.add_post("/v1/responses/{id}/cancel", self.cancel)

    async def create(self, http: web.Request) -> web.StreamResponse:
        """Answer, and keep the response unless `store` is false."""
        fault = await self._generations.begin(http)
        body = parse(await http.read(), ResponsesBody)
        if body.background:
            raise ApiError("background is not supported by the mock engine", param="background")
        messages = [*self._history(body.previous_response_id), *chat_messages(body.input)]
        system = [{"role": "system", "content": body.instructions}] if body.instructions else []
        chat = ChatBody(
            model=body.model,
            messages=[*system, *messages],
            max_tokens=body.max_output_tokens,
            stream=body.stream,
            tools=chat_tools(body.tools),
            tool_choice=_tool_choice(body.tool_choice),
            response_format=_format(body.text),
            cache_salt=body.cache_salt,
        )
        generation = await read_chat(self._engine, chat)
        answer = ResponsesAnswer(generation, self._engine.tokenizer, body)
        if body.store:
            self._stored[answer.id] = answer.stored = Stored(messages)
            if len(self._stored) > _STORED_MAX:
                self._stored.popitem(last=False)
        return await self._generations.generate(http, generation, answer, fault)

    async def retrieve(self, http: web.Request) -> web.Response:
        """A stored response that has ended."""
        return _json(self._ended(http.match_info["id"])[1])

    async def delete(self, http: web.Request) -> web.Response:
        """Forget a response."""
        name = http.match_info["id"]
        self._ended(name)
        del self._stored[name]
        return _json({"id": name, "object": "response", "deleted": True})

    async def cancel(self, http: web.Request) -> web.Response:
        """Refused: only responses in the background can be cancelled."""
        self._ended(http.match_info["id"])
        raise ApiError("Cannot cancel a synchronous response.", param="response_id")

    def _ended(self, name: str) -> tuple[Stored, dict[str, Any]]:
        stored = self._stored.get(name)
        if stored is None or stored.document is None:
            raise ApiError(
                f"Response with id '{name}' not found.",
                status=404,
                kind="invalid_request_error",
                param="response_id",
            )
        return stored, stored.document

    def _history(self, name: str | None) -> list[dict[str, Any]]:
        """The conversation up to a response, with what it said."""
        if name is None:
            return []
        stored, document = self._ended(name)
        said: list[dict[str, Any]] = [
            {"role": "assistant", "content": part["text"]}
            for item in document["output"]
            if item["type"] == "message"
            for part in item["content"]
        ]
        return [*stored.messages, *said]


class ResponsesAnswer(Answer):
    """A `response` with one item: a message or a function call."""

    def __init__(self, generation: Generation, text: TokenText, body: ResponsesBody) -> None:
        super().__init__(generation, text, id_prefix="resp", kind="response")
        self.id = f"resp_{secrets.token_hex(16)}"
        self.stored: Stored | None = None
        self._body = body
        script = generation.outputs[0].script
        self._tool = None if script is None else script.tool
        self._item_id = f"{'msg' if self._tool is None else 'fc'}_{secrets.token_hex(16)}"
        self._call_id = f"call_{secrets.token_hex(12)}"
        self._sequence = 0
        self._said: list[Said] = []

    def opening(self) -> bytes:
        """The begin of the response and of its item."""
        document = self._document([], status="in_progress", usage=None)
        events = self._event("response.created", response=document)
        events += self._event("response.in_progress", response=document)
        item = self._item("", status="in_progress")
        events += self._event("response.output_item.added", output_index=0, item=item)
        if self._tool is None:
            events += self._part_event("response.content_part.added", part=_text_part(""))
        return events

    def chunk(self, said: Said) -> bytes:
        """One token."""
        self._said.append(said)
        if self._tool is None:
            return self._part_event("response.output_text.delta", delta=said.text, logprobs=[])
        return self._item_event("response.function_call_arguments.delta", delta=said.text)

    def closing(self, usage: Usage) -> bytes:
        """The end of the item and of the response."""
        text = "".join(each.text for each in self._said)
        item = self._item(text, status=self._status(self._said))
        if self._tool is None:
            events = self._part_event("response.output_text.done", text=text, logprobs=[])
            events += self._part_event("response.content_part.done", part=_text_part(text))
        else:
            events = self._item_event(
                "response.function_call_arguments.done", name=self._tool, arguments=text
            )
        events += self._event("response.output_item.done", output_index=0, item=item)
        document = self._ended(item, self._said, usage)
        kind = "completed" if document["status"] == "completed" else "incomplete"
        return events + self._event(f"response.{kind}", response=document)

    def whole(self, choices: Sequence[Sequence[Said]], usage: Usage) -> bytes:
        """The body."""
        (said,) = choices
        text = "".join(each.text for each in said)
        return msgspec.json.encode(
            self._ended(self._item(text, status=self._status(said)), said, usage)
        )

    def _ended(self, item: dict[str, Any], said: Sequence[Said], usage: Usage) -> dict[str, Any]:
        document = self._document([item], status=self._status(said), usage=usage)
        if self.stored is not None:
            self.stored.document = document
        return document

    @staticmethod
    def _status(said: Sequence[Said]) -> str:
        return "incomplete" if said[-1].finish_reason == "length" else "completed"

    def _item(self, text: str, *, status: str) -> dict[str, Any]:
        if self._tool is not None:
            return {
                "id": self._item_id,
                "type": "function_call",
                "status": status,
                "call_id": self._call_id,
                "name": self._tool,
                "arguments": text,
            }
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [_text_part(text)] if status != "in_progress" else [],
        }

    def _document(
        self, output: list[dict[str, Any]], *, status: str, usage: Usage | None
    ) -> dict[str, Any]:
        body = self._body
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "created_at": int(time.time()),
            "incomplete_details": reason,
            "instructions": body.instructions,
            "metadata": body.metadata,
            "model": self._generation.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": body.max_output_tokens,
            "previous_response_id": body.previous_response_id,
            "service_tier": "auto",
            "status": status,
            "text": body.text,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
        }

    def _part_event(self, kind: str, **fields: object) -> bytes:
        return self._item_event(kind, content_index=0, **fields)

    def _item_event(self, kind: str, **fields: object) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        document = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(document) + b"\n\n"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _json(document: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


def chat_messages(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of the chat that an `input` becomes.

    Raises:
        ApiError: 400, an item that the mock does not support.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise ApiError("input must not be empty", param="input")
    messages: list[dict[str, Any]] = []
    for item in given:
        said = _message(item)
        before = messages[-1] if messages else {}
        if said["role"] == before.get("role") == "assistant" and "tool_calls" in said:
            before.setdefault("tool_calls", []).extend(said["tool_calls"])
        else:
            messages.append(said)
    return messages


def _message(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if kind != "message":
        raise ApiError(f"items of type {kind!r} are not supported", param="input")
    content = item.get("content")
    if isinstance(content, list):
        content = [_text(part) for part in cast("list[object]", content)]
        if item.get("role") == "assistant":
            content = content[0]["text"] if content else ""
    return {"role": item.get("role"), "content": content}


def _text(part: object) -> dict[str, Any]:
    text = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise ApiError("only texts are supported in a message's content", param="input")
    return {"type": "text", "text": text}


def chat_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """The tools of the chat that a request becomes.

    Raises:
        ApiError: 400, a tool that is no function.
    """
    if tools is None:
        return None
    chat: list[dict[str, Any]] = []
    for tool in tools:
        if tool.type != "function" or tool.name is None:
            raise ApiError(f"tools of type {tool.type!r} are not supported", param="tools")
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": tool.strict,
        }
        chat.append({"type": "function", "function": function})
    return chat


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict):
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _format(text: dict[str, Any] | None) -> dict[str, Any] | None:
    """`text.format` as a chat's `response_format`."""
    asked = None if text is None else text.get("format")
    if not isinstance(asked, dict):
        return None
    found = cast("dict[str, Any]", asked)
    if found.get("type") != "json_schema":
        return found
    return {"type": "json_schema", "json_schema": {"schema": found.get("schema")}}
