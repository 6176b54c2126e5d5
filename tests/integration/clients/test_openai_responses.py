"""The Responses API of the official client `openai`, across two engines."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.responses import FunctionToolParam, Response
from pydantic import BaseModel

from tests.integration.clients.cell import Cell
from tests.integration.clients.test_openai import client_of
from tests.integration.frontend.stage import MODEL, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


@pytest_asyncio.fixture(loop_scope="module")
async def client(cell: Cell) -> AsyncGenerator[AsyncOpenAI]:
    async with client_of(cell.url) as client:
        yield client


async def on(cell: Cell, client: AsyncOpenAI, worker_id: int, words: str) -> Response:
    """A response of the worker that the indexers name."""
    cell.stage.indexers.matches = [(worker_id, 0, 1000)]
    raw = await client.responses.with_raw_response.create(
        model=MODEL, input=words * 20, max_output_tokens=4
    )
    assert raw.headers["x-kvatlas-worker"] == f"{worker_id}/0"
    return raw.parse()


async def test_a_response_whole_and_streamed_says_the_same(client: AsyncOpenAI) -> None:
    whole = await client.responses.create(model=MODEL, input="Hello", instructions="Be brief")
    assert whole.status == "completed"
    assert whole.output_text
    async with client.responses.stream(
        model=MODEL, input="Hello", instructions="Be brief"
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == whole.output_text
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.input_tokens == whole.usage.input_tokens
    short = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=3)
    assert short.status == "incomplete"


async def test_each_conversation_stays_on_its_engine(cell: Cell, client: AsyncOpenAI) -> None:
    roots = {n: await on(cell, client, n, f"conversation {n}") for n in cell.engines}
    for n, root in roots.items():
        response = root
        for turn in range(3):
            raw = await client.responses.with_raw_response.create(
                model=MODEL, input=f"turn {turn}", previous_response_id=response.id
            )
            assert raw.headers["x-kvatlas-worker"] == f"{n}/0"
            assert raw.headers["x-kvatlas-reason"] == "response-holder"
            after = raw.parse()
            assert after.usage is not None
            assert response.usage is not None
            assert after.usage.input_tokens > response.usage.input_tokens
            assert after.usage.input_tokens_details.cached_tokens > 0
            response = after
        stream = await client.responses.create(
            model=MODEL, input="streamed", previous_response_id=response.id, stream=True
        )
        events = [event async for event in stream]
        created = events[0]
        assert created.type == "response.created"
        assert (await client.responses.retrieve(created.response.id)).output_text


async def test_responses_are_retrieved_and_deleted(cell: Cell, client: AsyncOpenAI) -> None:
    for worker_id in cell.engines:
        response = await on(cell, client, worker_id, "keep me")
        found = await client.responses.retrieve(response.id)
        assert found.output_text == response.output_text
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(response.id)
        await client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.responses.create(model=MODEL, input="a", previous_response_id="resp_0")
    assert unknown.value.code == "response_not_found"
    loose = await client.responses.create(model=MODEL, input="a", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(loose.id)


async def test_a_function_is_called_and_answered(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="Weather?", tools=[WEATHER])
    (call,) = first.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"city"}
    second = await client.responses.create(
        model=MODEL,
        tools=[WEATHER],
        input=[
            {"role": "user", "content": "Weather?"},
            {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            },
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        ],
    )
    assert second.output_text
    async with client.responses.stream(model=MODEL, input="Weather?", tools=[WEATHER]) as stream:
        kinds = {event.type async for event in stream}
        (streamed,) = (await stream.get_final_response()).output
    assert "response.function_call_arguments.delta" in kinds
    assert streamed.type == "function_call"
    assert streamed.arguments == call.arguments


class City(BaseModel):
    name: str
    people: int


async def test_an_answer_fits_a_schema(client: AsyncOpenAI) -> None:
    response = await client.responses.parse(model=MODEL, input="A city", text_format=City)
    assert response.output_parsed is not None


ASKED: list[dict[str, Any]] = [
    {"input": "Hello"},
    {"input": "Hello", "instructions": "Be brief"},
    {
        "input": [
            {"role": "developer", "content": "Be brief"},
            {"role": "user", "content": [{"type": "input_text", "text": t} for t in ("a", "ö")]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "yes", "annotations": []}],
            },
            {"role": "user", "content": "and?"},
        ]
    },
    {
        "tools": [WEATHER],
        "input": [
            {"role": "user", "content": "Weather?"},
            {
                "type": "function_call",
                "call_id": "1",
                "name": "weather",
                "arguments": '{"city":"Ö"}',
            },
            {"type": "function_call_output", "call_id": "1", "output": "sunny"},
        ],
    },
]


@pytest.mark.parametrize("asked", ASKED)
async def test_the_prompt_is_the_engines(
    cell: Cell, client: AsyncOpenAI, asked: dict[str, Any]
) -> None:
    def compared(result: str) -> float:
        return cell.stage.metric("prompts_compared_total", result=result)

    equal, drift = compared("equal"), compared("drift")
    body = {"model": MODEL, "max_output_tokens": 4, **asked}
    raw = await client.post("/responses", body=body, cast_to=httpx2.Response)
    assert raw.headers["x-kvatlas-reason"] == "no-match"
    await until(lambda: compared("equal") + compared("drift") == equal + drift + 1)
    assert compared("drift") == drift


async def test_a_stream_that_breaks_raises_the_clients_error(
    cell: Cell, client: AsyncOpenAI
) -> None:
    for worker_id in cell.engines:
        await cell.fault(worker_id, die_mid_stream=1, after_tokens=3)
    stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
    kinds: list[str] = []
    with pytest.raises(openai.APIError) as error:  # noqa: PT012 - the loop raises
        async for event in stream:
            kinds.append(event.type)  # noqa: PERF401 - the stream breaks
    assert error.value.code == "engine_died"
    assert kinds[-1] == "response.output_text.delta"


async def test_each_refusal_has_the_clients_class(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as empty:
        await client.responses.create(model=MODEL, input="")
    assert (empty.value.code, empty.value.param) == ("no_prompt", "input")
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.responses.create(model="other", input="a")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model=MODEL, input="a", max_output_tokens=100_000)
