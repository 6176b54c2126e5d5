"""The official client `anthropic`, through a real frontend to real mock engines."""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import httpx2
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from anthropic.types import MessageParam, ToolParam

from tests.integration.clients.cell import LORA, Cell
from tests.integration.frontend.stage import MODEL, Stage, status, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: ToolParam = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
HELLO: list[MessageParam] = [{"role": "user", "content": "Hello there"}]


def client_of(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=url, api_key="sk-x", max_retries=0, timeout=60)


@pytest_asyncio.fixture(loop_scope="module")
async def client(cell: Cell) -> AsyncGenerator[AsyncAnthropic]:
    async with client_of(cell.url) as client:
        yield client


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


async def test_a_message_whole_and_streamed_says_the_same(client: AsyncAnthropic) -> None:
    whole = await client.messages.create(model=MODEL, messages=HELLO, max_tokens=8)
    assert (whole.role, whole.stop_reason) == ("assistant", "max_tokens")
    assert whole.usage.output_tokens == 8
    async with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=8) as stream:
        said = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()
    assert said == text_of(whole) == text_of(final)
    assert final.usage.input_tokens == whole.usage.input_tokens
    raw = await client.messages.create(model=LORA, messages=HELLO, max_tokens=3, stream=True)
    assert [event.type async for event in raw] == [
        *("message_start", "content_block_start", *["content_block_delta"] * 3),
        *("content_block_stop", "message_delta", "message_stop"),
    ]


async def test_a_tool_is_called_and_answered(client: AsyncAnthropic) -> None:
    first = await client.messages.create(
        model=MODEL, messages=HELLO, max_tokens=100, tools=[WEATHER]
    )
    assert first.stop_reason == "tool_use"
    (call,) = first.content
    assert call.type == "tool_use"
    assert set(call.input) == {"city", "days"}
    async with client.messages.stream(
        model=MODEL,
        messages=HELLO,
        max_tokens=100,
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "weather"},
    ) as stream:
        (streamed,) = (await stream.get_final_message()).content
    assert streamed.type == "tool_use"
    assert streamed.input == call.input
    second = await client.messages.create(
        model=MODEL,
        max_tokens=8,
        tools=[WEATHER],
        messages=[
            *HELLO,
            {"role": "assistant", "content": first.content},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}],
            },
        ],
    )
    assert text_of(second)


async def test_tokens_are_counted(client: AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief")
    message = await client.messages.create(
        model=MODEL, messages=HELLO, system="Be brief", max_tokens=1
    )
    assert counted.input_tokens == message.usage.input_tokens


CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": HELLO},
    {"messages": HELLO, "system": "Be brief"},
    {
        "messages": HELLO,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: 1234"},
            {"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "brief"},
        ],
    },
    {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "", "ö")]}]},
    {
        "tools": [WEATHER, {**WEATHER, "name": "time", "input_schema": {"properties": {}}}],
        "messages": [
            *HELLO,
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look"},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Ö", "n": 1}},
                    {"type": "tool_use", "id": "t2", "name": "time", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "well?"},
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "content": [{"type": "text", "text": "ten"}, {"type": "text", "text": "past"}],
                    },
                ],
            },
            {"role": "assistant", "content": "It is"},
            {"role": "user", "content": "thanks"},
        ],
    },
]  # fmt: skip


@pytest.mark.parametrize("asked", CONVERSATIONS)
async def test_the_prompt_is_the_engines(
    cell: Cell, client: AsyncAnthropic, asked: dict[str, Any]
) -> None:
    def compared(result: str) -> float:
        return cell.stage.metric("prompts_compared_total", result=result)

    equal, drift = compared("equal"), compared("drift")
    body = {"model": MODEL, "max_tokens": 4, **asked}
    raw = await client.post("/v1/messages", body=body, cast_to=httpx2.Response)
    assert raw.headers["x-kvatlas-reason"] == "no-match"
    await until(lambda: compared("equal") + compared("drift") == equal + drift + 1)
    assert compared("drift") == drift


async def test_a_prompts_cache_chooses_the_worker(cell: Cell, client: AsyncAnthropic) -> None:
    for worker_id in cell.engines:
        cell.stage.indexers.matches = [(worker_id, 0, 1000)]
        raw = await client.messages.with_raw_response.create(
            model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "long " * 100}]
        )
        assert raw.headers["x-kvatlas-worker"] == f"{worker_id}/0"
        assert raw.headers["x-kvatlas-reason"] == "kv-match"


async def test_each_refusal_has_the_clients_class_and_the_apis_form(
    cell: Cell, client: AsyncAnthropic
) -> None:
    def error(raised: pytest.ExceptionInfo[Any]) -> tuple[str, str]:
        body = raised.value.body
        assert set(body) == {"type", "error"}
        assert body["type"] == "error"
        return body["error"]["type"], body["error"]["message"]

    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.create(model=MODEL, messages=[], max_tokens=1)
    assert error(raised) == ("invalid_request_error", "messages: at least one message is required")
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.create(model=MODEL, messages=HELLO, max_tokens=100_000)
    assert "maximum context length" in error(raised)[1]
    with pytest.raises(anthropic.NotFoundError) as raised:
        await client.messages.create(model="other", messages=HELLO, max_tokens=1)
    assert error(raised) == ("not_found_error", "The model `other` does not exist")
    with pytest.raises(anthropic.NotFoundError) as raised:
        await client.messages.batches.list()
    assert error(raised) == ("not_found_error", "Unknown request URL")
    big: list[MessageParam] = [{"role": "user", "content": "a" * 200_000}]
    with pytest.raises(anthropic.APIStatusError) as raised:
        await client.messages.create(model=MODEL, messages=big, max_tokens=1)
    assert raised.value.status_code == 413
    assert error(raised)[0] == "request_too_large"
    for worker_id in cell.engines:
        await cell.fault(worker_id, error_500=1)
    with pytest.raises(anthropic.InternalServerError) as raised:
        await client.messages.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert raised.value.status_code == 500
    assert error(raised)[0] == "api_error"


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_that_breaks_raises_the_clients_error(
    cell: Cell, client: AsyncAnthropic, streamed: bool
) -> None:
    for worker_id in cell.engines:
        await cell.fault(worker_id, die_mid_stream=1, after_tokens=2)
    if not streamed:
        with pytest.raises(anthropic.InternalServerError) as raised:
            await client.messages.create(model=MODEL, messages=HELLO, max_tokens=8)
        assert raised.value.body["error"]["type"] == "api_error"  # type: ignore[index] # pyright: ignore[reportIndexIssue, reportUnknownVariableType, reportOptionalSubscript] - any JSON
        return
    said: list[str] = []
    stream = await client.messages.create(model=MODEL, messages=HELLO, max_tokens=8, stream=True)
    with pytest.raises(anthropic.APIStatusError) as broken:  # noqa: PT012 - the loop raises
        async for event in stream:
            said.append(event.type)  # noqa: PERF401 - the stream breaks
    assert said[-1] == "content_block_delta"
    assert "failed while it was answering" in str(broken.value)


async def test_no_worker_is_an_overload_and_an_engines_rate_limit_passes() -> None:
    async with AsyncExitStack() as stack:
        stage = Stage(stack)
        await stage.start()
        async with client_of(f"http://{stage.frontend.api.address}") as client:
            with pytest.raises(anthropic.InternalServerError) as raised:
                await client.messages.create(model=MODEL, messages=HELLO, max_tokens=1)
            assert raised.value.status_code == 529
            body = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}
            limited = status(429, json.dumps(body), **{"Content-Type": "application/json"})
            await stage.engine(1, behaviour=limited)
            await stage.announce()
            with pytest.raises(anthropic.RateLimitError):
                await client.messages.create(model=MODEL, messages=HELLO, max_tokens=1)
