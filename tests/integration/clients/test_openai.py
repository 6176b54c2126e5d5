"""The official client `openai`, through a real frontend to real mock engines."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from tests.integration.clients.cell import LORA, Cell, running_cell
from tests.integration.frontend.stage import MODEL, Stage, status, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
        },
    },
}
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello there"}]


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-x", max_retries=0, timeout=60)


@pytest_asyncio.fixture(loop_scope="module")
async def client(cell: Cell) -> AsyncGenerator[AsyncOpenAI]:
    async with client_of(cell.url) as client:
        yield client


async def test_a_chat_whole_and_streamed_says_the_same(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == (
        whole.choices[0].message.content
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


async def test_the_stream_helper_puts_a_whole_chat_together(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=HELLO, tools=[WEATHER]
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "weather"
    assert set(json.loads(calls[0].function.arguments)) == {"city", "days"}


async def test_tools_are_called_answered_and_left_alone(client: AsyncOpenAI) -> None:
    first = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=[WEATHER])
    assert first.choices[0].finish_reason == "tool_calls"
    said = first.choices[0].message
    assert said.tool_calls is not None
    (call,) = said.tool_calls
    assert call.type == "function"
    assert isinstance(json.loads(call.function.arguments)["days"], int)
    messages: list[ChatCompletionMessageParam] = [
        *HELLO,
        said.to_dict(),  # type: ignore[list-item] # pyright: ignore[reportAssignmentType] - an answer's message is a request's
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    second = await client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content
    none = await client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice="none"
    )
    assert none.choices[0].message.content
    named = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
    )
    assert named.choices[0].message.tool_calls is not None
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model=MODEL, messages=HELLO, tool_choice="required")


class Step(BaseModel):
    title: str
    minutes: int
    parents: list["Step"]


class Plan(BaseModel):
    goal: str
    steps: list[Step]
    is_done: bool | None


async def test_answers_fit_a_schema(client: AsyncOpenAI) -> None:
    parsed = await client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Plan)
    plan = parsed.choices[0].message.parsed
    assert plan is not None
    assert plan.steps
    free = await client.chat.completions.create(
        model=MODEL, messages=HELLO, response_format={"type": "json_object"}
    )
    assert isinstance(json.loads(free.choices[0].message.content or ""), dict)
    with pytest.raises(openai.LengthFinishReasonError):
        await client.chat.completions.parse(
            model=MODEL, messages=HELLO, response_format=Plan, max_tokens=5
        )


async def test_log_probabilities(client: AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, top_logprobs=3, max_tokens=4
    )
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(each.token for each in logprobs.content) == chat.choices[0].message.content
    for each in logprobs.content:
        values = [top.logprob for top in each.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert each.top_logprobs[0].token == each.token
    text = await client.completions.create(
        model=MODEL, prompt="abc", logprobs=2, max_tokens=4, echo=True
    )
    written = text.choices[0]
    assert written.text.startswith("abc")
    assert written.logprobs is not None
    assert "".join(written.logprobs.tokens or ()) == written.text
    assert written.logprobs.text_offset == list(range(7))
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model=MODEL, messages=HELLO, top_logprobs=3)


async def test_several_choices_and_several_prompts(client: AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=6)
    assert [choice.index for choice in chat.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in chat.choices}) == 3
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 18
    text = await client.completions.create(model=MODEL, prompt=["ab", "cd"], n=2, max_tokens=6)
    assert [choice.index for choice in text.choices] == [0, 1, 2, 3]
    assert text.usage is not None
    assert text.usage.prompt_tokens == 4
    stream = await client.completions.create(
        model=MODEL, prompt=["ab", "cd"], n=2, max_tokens=6, stream=True
    )
    parts: dict[int, str] = {}
    async for chunk in stream:
        for choice in chunk.choices:
            parts[choice.index] = parts.get(choice.index, "") + choice.text
    assert parts == {choice.index: choice.text for choice in text.choices}


async def test_a_seed_chooses_the_answer(client: AsyncOpenAI) -> None:
    async def said(seed: int | None) -> str | None:
        chat = await client.chat.completions.create(model=MODEL, messages=HELLO, seed=seed)
        return chat.choices[0].message.content

    assert await said(1) == await said(1)
    assert len({await said(seed) for seed in (None, 1, 2)}) == 3


async def test_a_prompt_is_echoed_alone(client: AsyncOpenAI) -> None:
    text = await client.completions.create(model=MODEL, prompt="abc", echo=True, max_tokens=0)
    assert text.choices[0].text == "abc"
    assert text.usage is not None
    assert text.usage.completion_tokens == 0


async def test_embeddings_of_texts_and_tokens(client: AsyncOpenAI) -> None:
    texts = await client.embeddings.create(model=MODEL, input=["a", "b", "a"])
    assert [each.index for each in texts.data] == [0, 1, 2]
    assert texts.data[0].embedding == texts.data[2].embedding
    assert texts.data[0].embedding != texts.data[1].embedding
    tokens = await client.embeddings.create(
        model=MODEL, input=[[97]], dimensions=8, encoding_format="float"
    )
    assert len(tokens.data[0].embedding) == 8


async def test_a_transcription(client: AsyncOpenAI) -> None:
    file = ("speech.wav", b"RIFF0000WAVE")
    transcription = await client.audio.transcriptions.create(model=MODEL, file=file)
    assert transcription.text
    assert (await client.audio.transcriptions.create(model=LORA, file=file)) == transcription
    with pytest.raises(openai.NotFoundError):
        await client.audio.transcriptions.create(model="other", file=file)


async def test_models_are_listed_and_retrieved(client: AsyncOpenAI) -> None:
    names = [model.id async for model in client.models.list()]
    assert names == [MODEL, LORA]
    model = await client.models.retrieve(LORA)
    assert (model.id, model.object, model.owned_by) == (LORA, "model", "vllm")
    with pytest.raises(openai.NotFoundError) as error:
        await client.models.retrieve("other")
    assert error.value.code == "model_not_found"


async def test_each_refusal_has_the_clients_class(cell: Cell, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model=MODEL, messages=[])
    assert bad.value.code == "no_prompt"
    assert bad.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as of_engine:
        await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=100_000)
    assert "maximum context length" in str(of_engine.value)
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="other", messages=HELLO)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as no_route:
        await client.files.list()
    assert no_route.value.code == "unknown_url"
    with pytest.raises(openai.APIStatusError) as large:
        await client.completions.create(model=MODEL, prompt="a" * 200_000)
    assert large.value.status_code == 413
    for worker_id in cell.engines:
        await cell.fault(worker_id, error_500=1)
    with pytest.raises(openai.InternalServerError) as failed:
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert failed.value.code == "engines_failed"


async def test_an_engines_rate_limit_passes() -> None:
    async with AsyncExitStack() as stack:
        stage = Stage(stack)
        body = json.dumps({"error": {"message": "slow down", "code": "rate_limit_exceeded"}})
        limited = status(429, body, **{"Content-Type": "application/json", "Retry-After": "3"})
        await stage.engine(1, behaviour=limited)
        await stage.start()
        await stage.announce()
        async with client_of(f"http://{stage.frontend.api.address}") as client:
            with pytest.raises(openai.RateLimitError) as error:
                await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert error.value.code == "rate_limit_exceeded"
        assert error.value.response.headers["retry-after"] == "3"


@pytest.mark.parametrize("after_tokens", [0, 1, 5])
async def test_a_stream_that_breaks_raises_the_clients_error(
    cell: Cell, client: AsyncOpenAI, after_tokens: int
) -> None:
    for worker_id in cell.engines:
        await cell.fault(worker_id, die_mid_stream=1, after_tokens=after_tokens)
    said = 0
    with pytest.raises(openai.APIError) as error:  # noqa: PT012 - either line may raise
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        async for chunk in stream:
            said += bool(chunk.choices[0].delta.content)
    if after_tokens:
        assert error.value.code == "engine_died"
        assert said == after_tokens
    else:
        assert isinstance(error.value, openai.InternalServerError)


async def test_an_unstreamed_answer_that_breaks_is_a_status(
    cell: Cell, client: AsyncOpenAI
) -> None:
    for worker_id in cell.engines:
        await cell.fault(worker_id, die_mid_stream=1, after_tokens=1)
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model=MODEL, messages=HELLO)


async def test_an_engine_that_fails_before_its_first_byte_is_not_seen() -> None:
    async with running_cell() as cell, client_of(cell.url) as client:
        cell.stage.indexers.matches = [(1, 0, 4)]  # the request goes to the failing one first
        await cell.fault(1, die_before_first_byte=1)
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO)
    assert raw.headers["x-kvatlas-worker"] == "2/0"
    assert raw.headers["x-kvatlas-reason"] == "retry"
    assert raw.parse().choices[0].message.content


async def test_a_client_that_gives_up_takes_its_request_off_the_engine(
    cell: Cell, client: AsyncOpenAI
) -> None:
    for worker_id in cell.engines:
        await cell.fault(worker_id, hang=2)
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.3).chat.completions.create(model=MODEL, messages=HELLO)
    request = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=HELLO))
    await until(lambda: cell.stage.metric("requests_in_flight") == 1)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await until(cell.stage.nothing_in_flight)


async def test_a_frontend_that_is_gone_is_a_connection_error() -> None:
    async with running_cell() as cell:
        url = cell.url
    async with client_of(url) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.models.list()
