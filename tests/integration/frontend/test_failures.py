"""Engines and indexers that fail: the client gets another worker's answer, or one clear error."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from kvatlas_client import WorkerState
from kvatlas_frontend.fleet.watch import CellMismatchError
from tests.integration.frontend.stage import (
    MISMATCH,
    MODEL,
    Behaviour,
    Stage,
    complete,
    die,
    status,
    streamed,
    until,
)

BODY = {"model": MODEL, "prompt": "twelve chars"}
STREAM = BODY | {"stream": True}
NOBODY_LISTENS = "http://127.0.0.1:1"


def assert_error(text: str, code: str) -> None:
    error = json.loads(text)["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["type"]
    assert "127.0.0.1" not in text


@pytest.mark.parametrize(
    ("failing", "counted"),
    [
        (die, "died"),
        (streamed(then="die"), "died"),
        (status(500, "boom"), "status_5xx"),
        (status(503), "status_5xx"),
        (status(307, location="http://127.0.0.1:9/"), "protocol"),
    ],
)
async def test_before_the_first_byte_another_worker_answers(
    stage: Stage, failing: Behaviour, counted: str
) -> None:
    first = await stage.engine(7, behaviour=failing)
    await stage.engine(8)
    await stage.start()
    await stage.announce()
    stage.indexers.matches = [(7, 0, 3)]
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 200
        assert response.headers["x-kvatlas-worker"] == "8/0"
        assert response.headers["x-kvatlas-reason"] == "retry"
        assert response.headers["x-kvatlas-depth"] == "0"
    assert len(first.bodies) == 1
    assert stage.metric("retries_total") == 1
    assert stage.metric("attempts_failed_total", reason=counted) == 1
    await until(lambda: stage.metric("requests_total", route="completions", status="200") == 1)


async def test_when_all_fail_each_was_asked_once_and_the_client_gets_502(stage: Stage) -> None:
    engines = [await stage.engine(worker, behaviour=die) for worker in range(2)]
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 502
        assert_error(await response.text(), "engines_failed")
        assert "127.0.0.1" not in str(response.headers)
    assert [len(engine.bodies) for engine in engines] == [1, 1]


async def test_the_number_of_workers_a_request_is_offered_to_is_bounded(stage: Stage) -> None:
    engines = [await stage.engine(worker, behaviour=die) for worker in range(5)]
    await stage.start(attempts_max=2)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 502
    assert sum(len(engine.bodies) for engine in engines) == 2


@pytest.mark.parametrize(
    ("sent", "received"),
    [(b"data: 1\n\n", b"data: 1\n\n"), (b'data: 1\n\ndata: {"cut', b"data: 1\n\n")],
)
async def test_a_stream_that_breaks_ends_with_an_error_event_and_is_not_retried(
    stage: Stage, sent: bytes, received: bytes
) -> None:
    await stage.engine(7, behaviour=streamed(sent, then="die"))
    other = await stage.engine(8)
    await stage.start()
    await stage.announce()
    stage.indexers.matches = [(7, 0, 3)]
    async with stage.client.post("/v1/completions", json=STREAM) as response:
        assert response.status == 200
        whole = await response.read()
    assert whole.startswith(received + b"data: {")
    event, done, end = whole.removeprefix(received).split(b"\n\n")
    assert_error(event.decode().removeprefix("data: "), "engine_died")
    assert done == b"data: [DONE]"
    assert end == b""
    assert other.bodies == []
    await until(lambda: stage.metric("streams_broken_total") == 1)


def half(text: bytes) -> Behaviour:
    async def behaviour(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        response.content_type = "application/json"
        await response.prepare(request)
        await response.write(text)
        assert request.transport is not None
        request.transport.close()
        return response

    return behaviour


async def test_an_unstreamed_answer_that_breaks_is_a_502_and_is_not_retried(stage: Stage) -> None:
    await stage.engine(7, behaviour=half(b'{"choices": ['))
    other = await stage.engine(8)
    await stage.start()
    await stage.announce()
    stage.indexers.matches = [(7, 0, 3)]
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 502
        assert_error(await response.text(), "engine_died")
    assert other.bodies == []
    await until(lambda: stage.metric("streams_broken_total") == 1)


async def test_a_large_unstreamed_answer_that_breaks_ends_the_connection(stage: Stage) -> None:
    await stage.engine(7, behaviour=half(b"x" * 100))
    await stage.start(response_buffer_bytes_max=10)
    await stage.announce()
    with pytest.raises(aiohttp.ClientError):
        async with stage.client.post("/v1/completions", json=BODY) as response:
            await response.read()


async def test_a_large_unstreamed_answer_is_passed_on(stage: Stage) -> None:
    await stage.engine(7)
    await stage.start(response_buffer_bytes_max=10)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert (await response.json())["choices"] == [{"text": "ok"}]


async def test_an_engines_refusal_is_passed_on(stage: Stage) -> None:
    await stage.engine(7, behaviour=status(422, '{"error": {"message": "no such option"}}'))
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 422
        assert "no such option" in await response.text()
    await until(lambda: stage.metric("requests_total", route="completions", status="422") == 1)


async def test_an_engines_refusal_that_names_its_address_is_not(stage: Stage) -> None:
    await stage.engine(7, behaviour=status(404, "nothing at http://127.0.0.1:8000/v1"))
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 404
        assert_error(await response.text(), "engine_refused")


async def test_a_client_that_leaves_takes_its_request_off_the_engine(stage: Stage) -> None:
    engine = await stage.engine(7, behaviour=streamed(b"data: 1\n\n", then="wait"))
    await stage.start()
    await stage.announce()
    response = await stage.client.post("/v1/completions", json=STREAM)
    assert await response.content.readany() == b"data: 1\n\n"
    response.close()
    await engine.left.wait()
    await until(lambda: stage.metric("requests_total", route="completions", status="499") == 1)
    await until(stage.nothing_in_flight)


async def test_a_client_that_leaves_before_the_first_byte_does_too(stage: Stage) -> None:
    async def wait(_: web.Request) -> web.StreamResponse:
        return await asyncio.Future()

    engine = await stage.engine(7, behaviour=wait)
    await stage.start()
    await stage.announce()
    asking = asyncio.create_task(stage.client.post("/v1/completions", json=STREAM))
    await until(lambda: bool(engine.bodies))
    asking.cancel()
    await engine.left.wait()
    await until(stage.nothing_in_flight)


async def test_an_engine_nobody_listens_for_is_a_502(stage: Stage) -> None:
    await stage.start(probe_interval_s=1000)
    await stage.announce(stage.record(7, url=NOBODY_LISTENS))
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 502
        assert_error(await response.text(), "engines_failed")


async def test_an_engine_nobody_listens_for_is_left_alone_until_a_probe_finds_it(
    stage: Stage,
) -> None:
    await stage.engine(7)
    await stage.start(probe_interval_s=0.01)
    await stage.announce(stage.record(7, url=NOBODY_LISTENS))
    fleet = stage.frontend.fleet
    await until(lambda: bool(fleet.columns.unreachable_until_s[0]))
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 503
        assert_error(await response.text(), "no_worker_available")
    assert stage.metric("probes_failed_total") >= 1
    await stage.announce(stage.record(7))
    await until(lambda: not fleet.columns.unreachable_until_s[0])
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 200


async def test_a_stale_worker_that_answers_no_probe_is_out(stage: Stage) -> None:
    await stage.start(probe_interval_s=0.01)
    record = stage.record(7, state=WorkerState.STALE, url=NOBODY_LISTENS)
    await stage.announce(record)
    await until(lambda: bool(stage.frontend.fleet.columns.unreachable_until_s[0]))
    async with stage.client.get("/health") as response:
        assert response.status == 503


async def test_nobody_is_ready_without_workers(stage: Stage) -> None:
    await stage.engine(7)
    await stage.start()
    ready = f"http://{stage.frontend.admin.address}/readyz"

    async def get(url: str) -> tuple[int, str]:
        async with stage.client.get(url) as response:
            return response.status, await response.text()

    assert await get(ready) == (503, "no indexer has listed its workers yet\n")
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 503
        assert_error(await response.text(), "no_worker_available")
    assert stage.metric("requests_refused_total", reason="no_worker_available") == 1
    await stage.announce()
    assert (await get(ready))[0] == 200
    assert (await get("/health"))[0] == 200
    await stage.announce(stage.record(7, url="no address"))
    assert await get(ready) == (503, "no worker is available (1 known)\n")
    assert (await get("/health"))[0] == 503


async def test_a_cell_that_is_another_ends_the_frontend_at_its_start(stage: Stage) -> None:
    await stage.start()
    stage.indexers.changes.put_nowait(MISMATCH)
    with pytest.raises(CellMismatchError, match="16 here, 512 in the cell"):
        await stage.frontend.tasks.failed()


async def test_a_single_replica_of_another_cell_later_does_not(stage: Stage) -> None:
    await stage.engine(7, behaviour=complete)
    await stage.start()
    await stage.announce()
    stage.indexers.changes.put_nowait(MISMATCH)
    await until(lambda: stage.metric("watch_errors_total", reason="cell_mismatch") == 1)
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 200


async def test_stopping_ends_what_is_still_streaming(stage: Stage) -> None:
    engine = await stage.engine(7, behaviour=streamed(b"data: 1\n\n", then="wait"))
    await stage.start()
    await stage.announce()
    response = await stage.client.post("/v1/completions", json=STREAM)
    await stage.frontend.api.close()
    await engine.left.wait()
    with pytest.raises(aiohttp.ClientError):
        await response.read()


def bare(body: bytes, content_type: str) -> Callable[..., Awaitable[None]]:
    """An HTTP/1.0 answer: its end is the connection's, so death looks like an end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: %b\r\n\r\n" % content_type.encode())
            writer.write(body)
        writer.close()
        await writer.wait_closed()

    return serve


@pytest.mark.parametrize(
    ("body", "content_type", "status_code", "outcome"),
    [
        (b"data: 1\n\ndata: [DONE]\n\n", "text/event-stream", 200, "whole"),
        (b"data: 1\n\n", "text/event-stream", 200, "broken"),
        (b'{"choices": []}', "application/json", 200, "whole"),
        (b'{"choices": [', "application/json", 502, "broken"),
        (b"", "application/json", 200, "retried"),
        (b"", "text/event-stream", 200, "retried"),
    ],
)
async def test_an_end_of_the_connection_is_not_taken_for_the_end_of_an_answer(
    stage: Stage, body: bytes, content_type: str, status_code: int, outcome: str
) -> None:
    await stage.engine(8)
    server = await asyncio.start_server(bare(body, content_type), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    await stage.start()
    await stage.announce(stage.record(7, url=f"http://{host}:{port}"), stage.record(8))
    stage.indexers.matches = [(7, 0, 3)]
    async with stage.client.post("/v1/completions", json=STREAM) as response:
        received = await response.read()
        assert response.status == status_code
        if outcome == "retried":
            assert response.headers["x-kvatlas-worker"] == "8/0"
        elif outcome == "whole":
            assert received == body
        elif status_code == 200:
            assert received.startswith(body)
            assert received.endswith(b"data: [DONE]\n\n")
            assert b"engine_died" in received
        else:
            assert_error(received.decode(), "engine_died")
    await until(
        lambda: stage.metric("requests_total", route="completions", status=str(status_code)) == 1
    )
    assert stage.metric("streams_broken_total") == (outcome == "broken")
    server.close()
    await server.wait_closed()
