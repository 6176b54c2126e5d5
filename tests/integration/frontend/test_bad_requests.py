"""Requests that no engine should see: status, error object, counter, nothing left running."""

import asyncio
import gzip
import io
import json

import pytest

from tests.integration.frontend.stage import MODEL, Stage, until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "raw", "code", "param"),
    [
        (COMPLETIONS, b"{", "not_json", None),
        (COMPLETIONS, b"", "not_json", None),
        (COMPLETIONS, b'{"prompt": "\xff"}', "not_json", None),
        (COMPLETIONS, b"[]", "bad_field", None),
        (COMPLETIONS, b"{}", "no_prompt", "prompt"),
        (COMPLETIONS, b'{"prompt": ""}', "no_prompt", "prompt"),
        (COMPLETIONS, b'{"prompt": []}', "no_prompt", "prompt"),
        (COMPLETIONS, b'{"prompt": [[]]}', "no_prompt", "prompt"),
        (COMPLETIONS, b'{"prompt": null}', "no_prompt", "prompt"),
        (COMPLETIONS, b'{"prompt": 5}', "bad_field", None),
        (COMPLETIONS, b'{"prompt": [1, "two"]}', "bad_field", "prompt"),
        (COMPLETIONS, b'{"prompt": [-1]}', "bad_field", "prompt"),
        (COMPLETIONS, b'{"prompt": [4294967296]}', "bad_field", "prompt"),
        (COMPLETIONS, b'{"prompt": [{}]}', "bad_field", "prompt"),
        (COMPLETIONS, b'{"prompt": "a", "stream": "yes"}', "bad_field", None),
        (COMPLETIONS, b'{"prompt": "a", "cache_salt": 5}', "bad_field", None),
        (CHAT, b"{}", "no_prompt", "messages"),
        (CHAT, b'{"messages": []}', "no_prompt", "messages"),
        (CHAT, b'{"messages": "hello"}', "bad_field", None),
        (CHAT, b'{"messages": ["hello"]}', "bad_field", None),
    ],
)
async def test_a_body_that_says_nothing_usable_is_a_400(
    stage: Stage, path: str, raw: bytes, code: str, param: str | None
) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.post(path, data=raw) as response:
        assert response.status == 400
        assert response.content_type == "application/json"
        error = (await response.json())["error"]
    assert error["code"] == code
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]
    await until(lambda: stage.metric("requests_refused_total", reason=code) == 1)
    assert engine.bodies == []


async def test_an_unknown_model_is_a_404(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.post(COMPLETIONS, json={"model": "m", "prompt": "a"}) as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    await until(lambda: stage.metric("requests_refused_total", reason="model_not_found") == 1)
    assert engine.bodies == []


async def test_a_missing_model_means_the_cells(stage: Stage) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.post(COMPLETIONS, json={"prompt": "a"}) as response:
        assert response.status == 200


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_above_the_limit_is_a_413(stage: Stage, announced: bool) -> None:
    """With a Content-Length it is refused unread, without one as soon as the limit is passed."""
    engine = await stage.engine(7)
    await stage.start(request_bytes_max=1000)
    await stage.announce()
    raw = json.dumps({"model": MODEL, "prompt": "a" * 2000}).encode()

    async def chunks():  # noqa: ANN202 - an async generator of bytes
        for start in range(0, len(raw), 100):
            yield raw[start : start + 100]

    data = raw if announced else chunks()
    async with stage.client.post(COMPLETIONS, data=data) as response:
        assert response.status == 413
        error = (await response.json())["error"]
    assert error["code"] == "request_too_large"
    await until(lambda: stage.metric("requests_refused_total", reason="request_too_large") == 1)
    assert engine.bodies == []


async def test_a_body_of_a_megabyte_is_no_problem(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    raw = json.dumps({"model": MODEL, "prompt": "a" * 1_500_000}).encode()
    async with stage.client.post(COMPLETIONS, data=io.BytesIO(raw)) as response:
        assert response.status == 200
    assert engine.bodies == []
    assert engine.sizes == [len(raw)]


async def test_a_compressed_body_goes_up_decoded_within_the_limit(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start(request_bytes_max=1000)
    await stage.announce()
    headers = {"Content-Encoding": "gzip"}
    small = json.dumps({"prompt": "a"}).encode()
    async with stage.client.post(
        COMPLETIONS, data=gzip.compress(small), headers=headers
    ) as response:
        assert response.status == 200
    assert engine.bodies == [small]
    assert "content-encoding" not in engine.headers[0]
    bomb = gzip.compress(json.dumps({"prompt": "a" * 100_000}).encode())
    assert len(bomb) < 1000
    async with stage.client.post(COMPLETIONS, data=bomb, headers=headers) as response:
        assert response.status == 413


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/embedding", 404, "unknown_url"),
        ("POST", "/v1/chat", 404, "unknown_url"),
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_other_routes_are_refused(
    stage: Stage, method: str, path: str, status: int, code: str
) -> None:
    await stage.start()
    async with stage.client.request(method, path) as response:
        assert response.status == status
        assert (await response.json())["error"]["code"] == code
    await until(lambda: stage.metric("requests_refused_total", reason=code) == 1)


async def test_a_client_that_asks_before_a_large_body_is_told_to_go_on(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start(request_bytes_max=1000)
    await stage.announce()
    async with stage.client.post(COMPLETIONS, json={"prompt": "a"}, expect100=True) as response:
        assert response.status == 200
    assert "expect" not in engine.headers[0]
    address = stage.frontend.api.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    address = stage.frontend.api.address
    _, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n{")
    await writer.drain()
    await until(lambda: stage.metric("requests_in_flight") == 1)
    writer.close()
    await writer.wait_closed()
    await until(lambda: stage.metric("requests_total", route="completions", status="499") == 1)
    assert engine.bodies == []
