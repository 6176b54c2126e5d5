"""Errors on Anthropic's routes, raw: its form in every refusal, whoever makes it."""

import json
from typing import Any

import pytest

from tests.integration.frontend.stage import MODEL, Behaviour, Stage, die, status, streamed, until
from tests.integration.frontend.test_http import connected, response

MESSAGES = "/v1/messages"
BODY = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
EVENT = b'event: content_block_delta\ndata: {"type": "content_block_delta"}\n\n'


def checked(body: bytes) -> str:
    """The type of an error in Anthropic's form."""
    document: dict[str, Any] = json.loads(body)
    assert set(document) == {"type", "error"}
    assert document["type"] == "error"
    assert set(document["error"]) == {"type", "message"}
    return document["error"]["type"]


async def test_refusals_of_the_router(stage: Stage) -> None:
    await stage.start()
    refused = [
        ("POST", MESSAGES, b"{", 400, "invalid_request_error"),
        ("POST", MESSAGES, b'{"messages": []}', 400, "invalid_request_error"),
        ("POST", MESSAGES + "/count_tokens", b"[]", 400, "invalid_request_error"),
        ("POST", MESSAGES + "/batches", b"{}", 404, "not_found_error"),
        ("GET", MESSAGES, b"", 405, "invalid_request_error"),
        ("POST", MESSAGES, json.dumps(BODY).encode(), 529, "overloaded_error"),
    ]
    for method, path, raw, code, kind in refused:
        async with stage.client.request(method, path, data=raw) as answer:
            assert answer.status == code
            assert answer.content_type == "application/json"
            assert checked(await answer.read()) == kind
            assert ("allow" in answer.headers) == (code == 405)
    await until(lambda: stage.metric("requests_total", route="messages", status="529") == 1)
    async with stage.client.post("/v1/messagesx") as answer:
        assert "code" in (await answer.json())["error"]


async def test_an_unknown_model(stage: Stage) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.post(MESSAGES, json={**BODY, "model": "m"}) as answer:
        assert answer.status == 404
        assert checked(await answer.read()) == "not_found_error"


async def test_refusals_of_the_data_plane(stage: Stage) -> None:
    await stage.start(request_bytes_max=100, body_timeout_s=0.2)
    head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\n"
    refused = [
        (b"Content-Length: 101\r\n\r\n", 413, "request_too_large"),
        (b"Content-Length: 5\r\n\r\n{", 408, "invalid_request_error"),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "invalid_request_error"),
        (b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", 415, "invalid_request_error"),
    ]
    for rest, code, kind in refused:
        async with connected(stage) as (reader, writer):
            writer.write(head + rest)
            got, headers, body = await response(reader)
            assert (got, headers["content-type"]) == (code, "application/json")
            assert checked(body) == kind


@pytest.mark.parametrize("behaviour", [die, status(500, "x")])
async def test_engines_that_all_fail(stage: Stage, behaviour: Behaviour) -> None:
    await stage.engine(7, behaviour=behaviour)
    await stage.start()
    await stage.announce()
    async with stage.client.post(MESSAGES, json=BODY) as answer:
        assert answer.status == 500
        assert checked(await answer.read()) == "api_error"


async def test_engines_that_are_all_busy_say_when_to_come_back(stage: Stage) -> None:
    await stage.engine(7, behaviour=status(503, "", **{"Retry-After": "4"}))
    await stage.start()
    await stage.announce()
    async with stage.client.post(MESSAGES, json=BODY) as answer:
        assert (answer.status, answer.headers["retry-after"]) == (529, "4")
        assert checked(await answer.read()) == "overloaded_error"


async def test_a_broken_stream_ends_with_an_error_event_and_no_end_mark(stage: Stage) -> None:
    behaviour = streamed(EVENT, b'event: content_block_delta\ndata: {"ty', then="die")
    await stage.engine(7, behaviour=behaviour)
    await stage.start()
    await stage.announce()
    async with stage.client.post(MESSAGES, json={**BODY, "stream": True}) as answer:
        body = await answer.read()
    assert body.startswith(EVENT + b"event: error\ndata: {")
    event, end = body[len(EVENT) :].removeprefix(b"event: error\ndata: ").split(b"\n\n")
    assert checked(event) == "api_error"
    assert end == b""
    await until(lambda: stage.metric("streams_broken_total") == 1)


async def test_an_engines_errors_that_name_it_are_replaced(stage: Stage) -> None:
    engine = await stage.engine(7)
    named = f'event: error\ndata: {{"type": "error", "error": "at {engine.url}"}}\n\n'.encode()
    engine.behaviour = streamed(EVENT, named, EVENT)
    await stage.start()
    await stage.announce()
    async with stage.client.post(MESSAGES, json={**BODY, "stream": True}) as answer:
        first, error, last = (await answer.read()).split(b"\n\n", 2)
    assert [first + b"\n\n", last] == [EVENT, EVENT]
    assert checked(error.removeprefix(b"event: error\ndata: ")) == "api_error"
    engine.behaviour = status(400, f"at {engine.url}")
    async with stage.client.post(MESSAGES, json=BODY) as answer:
        assert answer.status == 400
        assert checked(await answer.read()) == "invalid_request_error"
