"""HTTP as clients and engines can get it wrong: raw bytes over real sockets."""

import asyncio
import gzip
import json
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from kvatlas_client import WorkerKey
from tests.integration.frontend.stage import MODEL, Behaviour, Stage, status, streamed, until

Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]

BODY = json.dumps({"model": MODEL, "prompt": "twelve chars"}).encode()
STREAM = {"model": MODEL, "prompt": "twelve chars", "stream": True}
SECRET = b"Authorization: Bearer sk-secret\r\n"


def post(body: bytes = BODY, *, headers: bytes = b"", version: bytes = b"1.1") -> bytes:
    return (
        b"POST /v1/completions HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n" % (version, len(body))
        + headers
        + b"\r\n"
        + body
    )


@asynccontextmanager
async def connected(stage: Stage) -> AsyncGenerator[Raw]:
    address = stage.frontend.api.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {
        name.lower(): value
        for name, _, value in (line.partition(": ") for line in head[1:] if line)
    }
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = await reader.read()
    return int(head[0].split()[1]), headers, body


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (post(headers=SECRET + b"Transfer-Encoding: chunked\r\n"), 400),
        (post(headers=SECRET + b"Content-Length: 5\r\n"), 400),
        (post(headers=SECRET + b"X: a\r\n folded\r\n"), 400),
        (b"POST /v1/completions HTTP/1.1\nHost: x\nContent-Length: 2\n\n{}", 400),
        (b"POST /v1/completions HTTP/1.1\r\n" + SECRET + b"Content-Length: 2\r\n\r\n{}", 400),
        (post(headers=SECRET + b"X-Long: " + b"a" * 40_000 + b"\r\n"), 431),
        (post(headers=SECRET + b"X: y\r\n" * 200), 431),
        (post(headers=SECRET, version=b"3.0"), 505),
        (post(headers=SECRET + b"Expect: 200-maybe\r\n"), 417),
        (post(b"[" * 5_000 + b"]" * 5_000), 400),
        (post(b'{"prompt": ' + b"[" * 100_000), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    ],
)
async def test_a_malformed_request_gets_an_error_object_and_reaches_no_engine(
    stage: Stage, request_bytes: bytes, code: int
) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with connected(stage) as (reader, writer):
        writer.write(request_bytes)
        got, headers, body = await response(reader)
        assert (got, headers["content-type"]) == (code, "application/json")
        error = json.loads(body)["error"]
        assert error["message"]
        assert error["code"]
        assert b"sk-secret" not in body
        assert "aaaa" not in error["message"]
    assert engine.bodies == []
    await until(lambda: stage.metric("requests_refused_total", reason=error["code"]) == 1)
    await until(stage.nothing_in_flight)


async def test_nothing_behind_a_refused_request_is_taken_for_another_one(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    hidden = b"0\r\n\r\n" + post()
    async with connected(stage) as (reader, writer):
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" % len(hidden) + hidden
        )
        assert (await response(reader))[0] == 400
        assert await reader.read() == b""
    assert engine.bodies == []


async def test_requests_sent_in_one_go_are_answered_in_order(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    bodies = [json.dumps({"prompt": f"twelve chars {n}"}).encode() for n in range(5)]
    async with connected(stage) as (reader, writer):
        writer.write(b"".join(post(body) for body in bodies))
        assert [(await response(reader))[0] for _ in bodies] == [200] * 5
    assert engine.bodies == bodies


async def test_chunks_and_trailers_of_a_request(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    chunked = b"".join(b"%x;n=v\r\n%b\r\n" % (1, BODY[i : i + 1]) for i in range(len(BODY)))
    async with connected(stage) as (reader, writer):
        for _ in range(2):
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                + chunked
                + b"0\r\nX-Trailer: y\r\n\r\n"
            )
            assert (await response(reader))[0] == 200
    assert engine.bodies == [BODY, BODY]


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0_gets_an_answer_that_ends_with_the_connection(
    stage: Stage, stream: bool
) -> None:
    events = b"data: 1\n\ndata: [DONE]\n\n"
    if stream:
        await stage.engine(7, behaviour=streamed(events))
    else:
        await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with connected(stage) as (reader, writer):
        writer.write(post(json.dumps(STREAM).encode() if stream else BODY, version=b"1.0"))
        got, headers, body = await response(reader)
        assert got == 200
        assert "transfer-encoding" not in headers
        assert body == events if stream else json.loads(body)["choices"]
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (b"http://anywhere:80/health", 200),
        (b"/health?x=y", 200),
        (b"//health", 404),
        (b"/%68ealth", 404),
        (b"*", 404),
        (b"health", 400),
    ],
)
async def test_request_targets(stage: Stage, target: bytes, code: int) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with connected(stage) as (reader, writer):
        writer.write(
            b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            % target
        )
        assert (await response(reader))[0] == code


async def test_a_wrong_method_is_told_the_right_ones(stage: Stage) -> None:
    await stage.start()
    async with stage.client.get("/v1/completions") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    async with stage.client.post("/health") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("value", [1, 0, True])
async def test_stream_may_be_a_number(stage: Stage, value: int) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", json=STREAM | {"stream": value}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
async def test_a_client_that_closes_its_sending_side_is_answered(
    stage: Stage, delay_s: float
) -> None:
    release = asyncio.Event()

    async def wait(_: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.json_response({"choices": []})

    engine = await stage.engine(7, behaviour=wait)
    await stage.start()
    await stage.announce()
    async with connected(stage) as (reader, writer):
        writer.write(post())
        await asyncio.sleep(delay_s)
        writer.write_eof()
        await until(lambda: bool(engine.bodies))
        await asyncio.sleep(0.1)
        release.set()
        whole = await reader.read()
        assert whole.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert whole.endswith(b'{"choices": []}')


async def test_a_client_that_leaves_while_its_stream_stalls_is_noticed(stage: Stage) -> None:
    engine = await stage.engine(7, behaviour=streamed(b"data: 1\n\n", then="wait"))
    await stage.start()
    await stage.announce()
    async with connected(stage) as (reader, writer):
        writer.write(post(json.dumps(STREAM).encode()))
        await reader.readuntil(b"data: 1\n\n")
        await asyncio.sleep(0.05)
        # Everything is read, so the system sends no reset of its own.
        writer.close()
        await engine.left.wait()
    await until(stage.nothing_in_flight)


@pytest.mark.parametrize("sent", [b"POST /v1", post()[:-5]])
async def test_a_client_that_stalls_is_cut_off(stage: Stage, sent: bytes) -> None:
    await stage.start(head_timeout_s=0.2, body_timeout_s=0.2)
    async with connected(stage) as (reader, writer):
        writer.write(sent)
        got, _, body = await response(reader)
        assert (got, json.loads(body)["error"]["code"]) == (408, "request_timeout")
        assert await reader.read() == b""
    await until(lambda: stage.metric("requests_refused_total", reason="request_timeout") == 1)


async def test_a_head_that_drips_is_cut_off_all_the_same(stage: Stage) -> None:
    await stage.start(head_timeout_s=0.3)
    async with connected(stage) as (reader, writer):

        async def drip() -> None:
            for byte in b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert (await response(reader))[0] == 408
        dripping.cancel()


async def test_an_idle_connection_is_closed(stage: Stage) -> None:
    await stage.engine(7)
    await stage.start(idle_timeout_s=0.2)
    await stage.announce()
    async with connected(stage) as (reader, writer):
        writer.write(post())
        assert (await response(reader))[0] == 200
        assert await reader.read() == b""


async def test_a_client_that_reads_nothing_is_cut_off(stage: Stage) -> None:
    async def flood(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        while True:
            await answer.write(b"data: " + b"x" * 60_000 + b"\n\n")

    engine = await stage.engine(7, behaviour=flood)
    await stage.start(write_timeout_s=0.3)
    await stage.announce()
    address = stage.frontend.api.address
    client = socket.create_connection((address.host, address.port))
    client.sendall(post(json.dumps(STREAM).encode()))
    await engine.left.wait()
    await until(stage.nothing_in_flight)
    client.close()


async def hang(_: web.Request) -> web.StreamResponse:
    return await asyncio.Future()


async def test_an_engine_that_never_answers_is_left_for_another(stage: Stage) -> None:
    await stage.engine(7, behaviour=hang)
    await stage.engine(8)
    await stage.start(first_byte_timeout_s=0.2)
    await stage.announce()
    stage.indexers.matches = [(7, 0, 3)]
    async with stage.client.post("/v1/completions", data=BODY) as answer:
        assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, "8/0")
    assert stage.metric("attempts_failed_total", reason="timeout") == 1


async def test_an_engine_that_stops_in_the_middle_breaks_its_stream(stage: Stage) -> None:
    await stage.engine(7, behaviour=streamed(b"data: 1\n\n", then="wait"))
    await stage.start(between_bytes_timeout_s=0.2)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=STREAM) as answer:
        assert b"engine_died" in await answer.read()
    await until(lambda: stage.metric("streams_broken_total") == 1)


def bare(answer: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """An engine that answers every request with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            writer.write(answer)
            await writer.drain()
        writer.close()

    return serve


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"SMTP ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ],
)
async def test_an_engine_that_answers_nonsense_is_left_for_another(
    stage: Stage, answer: bytes
) -> None:
    await stage.engine(8)
    server = await asyncio.start_server(bare(answer), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    await stage.start()
    await stage.announce(stage.record(7, url=f"http://{host}:{port}"), stage.record(8))
    stage.indexers.matches = [(7, 0, 3)]
    async with stage.client.post("/v1/completions", data=BODY) as got:
        assert (got.status, got.headers["x-kvatlas-worker"]) == (200, "8/0")
    server.close()


async def test_an_engines_address_does_not_come_down(stage: Stage) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        text = gzip.compress(f"no route at {request.host}".encode())
        return web.Response(
            status=400,
            body=text,
            headers={"Content-Encoding": "gzip", "X-Request-Id": f"{request.host}-1"},
        )

    async def fail(request: web.Request) -> web.StreamResponse:
        event = json.dumps({"error": {"message": f"lost {request.host}"}}).encode()
        return await streamed(b"data: 1\n\ndata: " + event + b"\n\n", b"data: [DONE]\n\n")(request)

    engine = await stage.engine(7, behaviour=refuse)
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", data=BODY) as answer:
        assert answer.status == 400
        assert "x-request-id" not in answer.headers
        assert (await answer.json())["error"]["code"] == "engine_refused"
    engine.behaviour = fail
    async with stage.client.post("/v1/completions", json=STREAM) as answer:
        whole = await answer.read()
    assert b"127.0.0.1" not in whole
    assert b"engine_error" in whole
    assert whole.startswith(b"data: 1\n\n")


async def test_engines_that_die_cost_no_request(stage: Stage) -> None:
    """Four of eight end the connection before the first byte."""

    async def die(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    for worker in range(8):
        if worker % 2:
            await stage.engine(worker, behaviour=die)
        else:
            await stage.engine(worker)
    await stage.start()
    await stage.announce()

    async def one(n: int) -> int:
        body = {"model": MODEL, "prompt": f"prompt {n}"}
        async with stage.client.post("/v1/completions", json=body) as answer:
            return answer.status

    for first in range(0, 400, 40):
        assert set(await asyncio.gather(*(one(first + n) for n in range(40)))) == {200}


async def test_an_engine_that_fails_fast_draws_few_requests(stage: Stage) -> None:
    failing = await stage.engine(0, behaviour=status(500, "broken"))
    for worker in range(1, 8):
        await stage.engine(worker)
    await stage.start()
    await stage.announce()
    for n in range(100):
        body = {"model": MODEL, "prompt": f"prompt {n}"}
        async with stage.client.post("/v1/completions", json=body) as answer:
            assert answer.status == 200
    assert len(failing.bodies) <= 5


async def test_requests_that_no_engine_can_serve_do_not_stop_the_others(stage: Stage) -> None:
    async def picky(request: web.Request) -> web.StreamResponse:
        if b"poison" in await request.read():
            return web.Response(status=500)
        return web.json_response({"choices": []})

    for worker in range(3):
        await stage.engine(worker, behaviour=picky)
    await stage.start()
    await stage.announce()
    for _ in range(10):
        async with stage.client.post("/v1/completions", json={"prompt": "poison"}) as answer:
            assert answer.status == 502
    async with stage.client.post("/v1/completions", data=BODY) as answer:
        assert answer.status == 200


async def test_a_request_goes_to_one_engine_once_whatever_ranks_it_has(stage: Stage) -> None:
    engine = await stage.engine(7, behaviour=status(500, "broken"))
    stage.engines[WorkerKey(7, 1)] = engine
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", data=BODY) as answer:
        assert answer.status == 502
    assert len(engine.bodies) == 1


@pytest.mark.parametrize("behaviours", [["7", "3"], ["7", "500"]])
async def test_a_fleet_that_is_busy_says_when_to_come_again(
    stage: Stage, behaviours: list[str]
) -> None:
    for worker, wait in enumerate(behaviours):
        busy: Behaviour = status(503, "busy", **{"Retry-After": wait})
        await stage.engine(worker, behaviour=status(500) if wait == "500" else busy)
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", data=BODY) as answer:
        if "500" in behaviours:
            assert answer.status == 502
        else:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "3")


async def test_a_fleet_that_is_gone_is_noticed_without_a_request(stage: Stage) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        await stage.engine(7)
        await stage.start(probe_interval_s=0.05)
        await stage.announce(stage.record(7, url=url))
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + 2
        while loop.time() < limit_s:
            async with stage.client.get("/health") as answer:
                if answer.status == 503:
                    break
            await asyncio.sleep(0.01)
        async with stage.client.get(f"http://{stage.frontend.admin.address}/readyz") as answer:
            assert answer.status == 503


async def test_small_writes_are_sent_at_once(stage: Stage) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with connected(stage) as (reader, writer):
        writer.write(post())
        assert (await response(reader))[0] == 200
        ours = writer.get_extra_info("sockname")
        delays = [delay for client, delay in accepted_sockets() if client == ours]
    assert delays == [1]


def accepted_sockets() -> list[tuple[object, int]]:
    """Peer and TCP_NODELAY of this process's sockets; the server under test lives in this process."""
    found: list[tuple[object, int]] = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                delay = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                found.append((copy.getpeername(), delay))
        except OSError:  # no TCP socket, not connected, or closed meanwhile
            continue
    return found
