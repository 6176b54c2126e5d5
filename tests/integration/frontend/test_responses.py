"""Responses go on from others on the engine that has them: ids learned from answers' begins."""

import json
from typing import Any

import pytest
from aiohttp import web

from tests.integration.frontend.stage import (
    MODEL,
    Behaviour,
    Engine,
    Stage,
    die,
    status,
    streamed,
    until,
)

RESPONSES = "/v1/responses"
ASK: dict[str, Any] = {"model": MODEL, "input": "twelve chars"}


def answering(response_id: str, **fields: object) -> Behaviour:
    async def behaviour(_: web.Request) -> web.StreamResponse:
        return web.json_response({"id": response_id, "object": "response", **fields})

    return behaviour


async def two_engines(stage: Stage, **settings: Any) -> tuple[Engine, Engine]:  # noqa: ANN401 - any setting
    engines = [await stage.engine(n, behaviour=answering(f"resp_{n}")) for n in (1, 2)]
    await stage.start(**settings)
    await stage.announce()
    return engines[0], engines[1]


async def create(stage: Stage, worker_id: int, **fields: object) -> None:
    """A response on the worker that the indexers name."""
    stage.indexers.matches = [(worker_id, 0, 3)]
    async with stage.client.post(RESPONSES, json={**ASK, **fields}) as answer:
        assert answer.status == 200
        await answer.read()


async def follow(stage: Stage, response_id: str) -> tuple[int, str | None, Any]:
    asked = {**ASK, "previous_response_id": response_id}
    async with stage.client.post(RESPONSES, json=asked) as answer:
        reason = answer.headers.get("x-kvatlas-reason")
        return answer.status, reason, await answer.json()


@pytest.mark.parametrize("size", [10, 10_000])
async def test_what_follows_goes_to_the_engine_that_has_it(stage: Stage, size: int) -> None:
    """Wherever the prompt's cache is, and however long the answer."""
    first, second = await two_engines(stage)
    first.behaviour = answering("resp_1", instructions="x" * size)
    await create(stage, 1)
    await create(stage, 2)
    stage.indexers.matches = [(2, 0, 3)]
    for _ in range(3):
        assert (await follow(stage, "resp_1"))[:2] == (200, "response-holder")
    assert (len(first.bodies), len(second.bodies)) == (4, 1)
    async with stage.client.get(f"{RESPONSES}/resp_1?include=a") as answer:
        assert answer.headers["x-kvatlas-worker"] == "1/0"
    async with stage.client.post(f"{RESPONSES}/resp_2/cancel") as answer:
        assert answer.headers["x-kvatlas-worker"] == "2/0"
    async with stage.client.delete(f"{RESPONSES}/resp_2") as answer:
        assert answer.headers["x-kvatlas-worker"] == "2/0"
    assert first.asked[-1] == "GET /v1/responses/resp_1?include=a"
    assert [target for target in second.asked if "/resp_" in target] == [
        "POST /v1/responses/resp_2/cancel",
        "DELETE /v1/responses/resp_2",
    ]
    await until(lambda: stage.metric("requests_total", route="response", status="200") == 2)
    await until(stage.nothing_in_flight)


@pytest.mark.parametrize(
    "chunks",
    [
        [
            b'event: response.created\ndata: {"type": "response.created", "response": {"id": "r"}}\n\n'
        ],
        [b"event: response.created\n", b'data: {"response": {"i', b'd" : "r"}', b"}\n\n"],
        [
            b'data: {"sequence_number": 0, "response": {"id": "r", "input": "\\"id\\": \\"no\\""}}\n\n'
        ],
        [b": hello\r\n", b'data: {"id": "r", "x": "' + b"x" * 9_000 + b'"}\r\n\r\n'],
    ],
)
async def test_an_id_is_learned_from_a_streams_first_event(
    stage: Stage, chunks: list[bytes]
) -> None:
    first, _ = await two_engines(stage)
    end = b'data: {"type": "response.completed"}\n\n'
    first.behaviour = streamed(*chunks, end)
    stage.indexers.matches = [(1, 0, 3)]
    async with stage.client.post(RESPONSES, json={**ASK, "stream": True}) as answer:
        assert await answer.read() == b"".join(chunks) + end
    first.behaviour = answering("resp_1")
    assert (await follow(stage, "r"))[0] == 200
    assert len(first.bodies) == 2


async def test_a_stream_can_be_followed_before_its_end(stage: Stage) -> None:
    first, _ = await two_engines(stage)
    first.behaviour = streamed(b'data: {"response": {"id": "r"}}\n\n', then="wait")
    stage.indexers.matches = [(1, 0, 3)]
    async with stage.client.post(RESPONSES, json={**ASK, "stream": True}) as answer:
        await answer.content.readany()
        first.behaviour = answering("resp_1")
        async with stage.client.post(f"{RESPONSES}/r/cancel") as cancelled:
            assert cancelled.headers["x-kvatlas-worker"] == "1/0"


async def test_a_stream_that_breaks_in_its_first_event_ends_with_an_error(stage: Stage) -> None:
    first, _ = await two_engines(stage)
    first.behaviour = streamed(b'data: {"resp', then="die")
    stage.indexers.matches = [(1, 0, 3)]
    async with stage.client.post(RESPONSES, json={**ASK, "stream": True}) as answer:
        body = await answer.read()
    assert b"engine_died" in body
    assert body.endswith(b"data: [DONE]\n\n")
    assert b'"resp' not in body


async def test_an_unknown_response_is_not_found(stage: Stage) -> None:
    first, second = await two_engines(stage)
    for method, path, raw in [
        ("POST", RESPONSES, json.dumps({**ASK, "previous_response_id": "no"}).encode()),
        ("GET", f"{RESPONSES}/no", b""),
        ("DELETE", f"{RESPONSES}/no", b""),
        ("POST", f"{RESPONSES}/no/cancel", b""),
    ]:
        async with stage.client.request(method, path, data=raw) as answer:
            assert answer.status == 404
            assert (await answer.json())["error"] == {
                "message": "Response with id 'no' not found.",
                "type": "not_found_error",
                "param": "response_id",
                "code": "response_not_found",
            }
    assert first.asked == second.asked == []
    await until(lambda: stage.metric("requests_refused_total", reason="response_not_found") == 4)


@pytest.mark.parametrize("path", ["/v1/responses/a%2fb", "/v1/responses/a/b", "/v1/responses/"])
async def test_an_id_is_one_plain_word(stage: Stage, path: str) -> None:
    await two_engines(stage)
    async with stage.client.get(path) as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "unknown_url"


async def test_a_single_engine_is_asked_about_any_response(stage: Stage) -> None:
    engine = await stage.engine(1, behaviour=status(404, '{"error": {"message": "of engine"}}'))
    await stage.start()
    await stage.announce()
    async with stage.client.get(f"{RESPONSES}/resp_before_a_restart") as answer:
        assert (answer.status, "of engine" in await answer.text()) == (404, True)
    assert engine.asked == ["GET /v1/responses/resp_before_a_restart"]


async def test_the_only_engine_of_an_adapter_may_have_its_responses(stage: Stage) -> None:
    base = {"id": MODEL, "object": "model", "parent": None}
    lora = {"id": "sql", "object": "model", "parent": MODEL}
    plain = await stage.engine(1, models=[base])
    able = await stage.engine(2, models=[base, lora])
    await stage.start()
    await stage.announce()
    for model, code in (("sql", 200), (MODEL, 404)):
        asked = {"model": model, "input": "a", "previous_response_id": "before_a_restart"}
        async with stage.client.post(RESPONSES, json=asked) as answer:
            assert answer.status == code
    assert (len(plain.bodies), len(able.bodies)) == (0, 1)


async def test_a_response_that_is_not_stored_is_not_remembered(stage: Stage) -> None:
    await two_engines(stage)
    await create(stage, 1, store=False)
    assert (await follow(stage, "resp_1"))[0] == 404


async def test_the_oldest_ids_are_forgotten(stage: Stage) -> None:
    first, _ = await two_engines(stage, responses_remembered_max=2)
    for name in ("a", "b"):
        first.behaviour = answering(name)
        await create(stage, 1)
    first.behaviour = answering("c")
    assert (await follow(stage, "a"))[0] == 200  # used last: b is the oldest now
    assert [(await follow(stage, name))[0] for name in ("b", "a", "c")] == [404, 200, 200]


async def test_an_engine_that_is_gone_has_taken_its_responses_along(stage: Stage) -> None:
    first, _ = await two_engines(stage)
    await stage.engine(3, behaviour=answering("resp_3"))
    await stage.announce()
    await create(stage, 1)
    first.behaviour = die
    status_of, _, body = await follow(stage, "resp_1")
    assert (status_of, body["error"]["code"]) == (502, "engines_failed")  # no other one has it
    await stage.announce(stage.record(2), stage.record(3))
    await until(lambda: len(stage.frontend.fleet) == 2)
    assert (await follow(stage, "resp_1"))[0] == 404


async def test_the_prompt_chooses_the_worker_where_it_is_known(stage: Stage) -> None:
    await two_engines(stage, ask_engine=True)
    stage.indexers.matches = [(2, 0, 3)]
    async with stage.client.post(RESPONSES, json=ASK) as answer:
        assert answer.headers["x-kvatlas-reason"] == "kv-match"
        assert answer.headers["x-kvatlas-worker"] == "2/0"
    reasoning = {**ASK, "reasoning": {"effort": "low"}}
    async with stage.client.post(RESPONSES, json=reasoning) as answer:
        assert answer.headers["x-kvatlas-reason"] == "fallback-engine-prompt"
    assert stage.metric("prompts_unrendered_total", reason="reasoning") == 1
    assert stage.metric("fallbacks_total", reason="fallback-engine-prompt") == 1
