"""Which URLs are served, by which methods, and what of a request reaches an engine."""

import json
import random
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from kvatlas_frontend.api.passed import parse_passed
from kvatlas_frontend.api.routes import LABELS, PATTERNS, TABLE, Kind, Route, find_route
from tests.integration.frontend.stage import MODEL, Stage, status, until

LORA = {"id": "org/sql", "object": "model", "parent": MODEL, "root": "/secret/path"}
BASE = {"id": MODEL, "object": "model", "parent": None}
WITH_ID = ("/v1/models/m", "/v1/responses/r", "/v1/responses/r/cancel")
PASSED = [path for path, route in TABLE.items() if route.kind is Kind.PASSED]


def find(path: str) -> Route:
    found = find_route(path)
    assert found is not None
    return found[0]


def url_of(stage: Stage, target: str) -> URL:
    """A URL that the client sends as it is."""
    return URL(f"http://{stage.frontend.api.address}{target}", encoded=True)


async def test_a_request_that_routing_does_not_read_goes_to_an_engine_as_it_is(
    stage: Stage,
) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    raw = b'{"model": "base-model",  "prompt": "a", "input": [{"b": 1}]}'
    for path in PASSED:
        async with stage.client.post(url_of(stage, f"{path}?x=1&y=%2F"), data=raw) as response:
            assert response.status == 200
            assert response.headers["x-kvatlas-reason"] == "no-prompt"
            assert response.headers["x-kvatlas-worker"] == "7/0"
    assert engine.asked == [f"POST {path}?x=1&y=%2F" for path in PASSED]
    assert engine.bodies == [raw] * (len(PASSED) - 1)  # the scripted /tokenize keeps none
    assert stage.indexers.asked == []
    for label in {TABLE[path].label for path in PASSED}:
        served = sum(TABLE[path].label == label for path in PASSED)
        await until(
            lambda label=label, served=served: (
                stage.metric("requests_total", route=label, status="200") == served
            )
        )
    await until(stage.nothing_in_flight)


async def test_an_adapters_request_goes_where_the_adapter_is(stage: Stage) -> None:
    plain = await stage.engine(1, models=[BASE])
    able = await stage.engine(2, models=[BASE, LORA])
    await stage.start()
    await stage.announce()
    for _ in range(3):
        body = {"model": LORA["id"], "input": "a"}
        async with stage.client.post("/v1/embeddings", json=body) as response:
            assert response.status == 200
    form = aiohttp.FormData()
    form.add_field("file", b"RIFF", filename="model", content_type="audio/wav")
    form.add_field("model", LORA["id"])
    async with stage.client.post("/v1/audio/transcriptions", data=form) as response:
        assert response.status == 200
    assert (len(plain.bodies), len(able.bodies)) == (0, 4)
    assert able.headers[3]["content-type"].startswith("multipart/form-data")
    async with stage.client.post("/v1/embeddings", json={"model": "no"}) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


def test_the_model_of_a_form_is_found_beside_files_that_look_like_it() -> None:
    def model(body: bytes, content_type: str = "multipart/form-data; boundary=b") -> str | None:
        return parse_passed(content_type, body).model

    name = b'Content-Disposition: form-data; name="model"'
    file = name + b'; filename="f"\r\n\r\nwrong\r\n'
    field = name + b"\r\n\r\nright\r\n"
    assert model(b"--b\r\n" + file + b"--b\r\n" + field + b"--b--\r\n") == "right"
    assert model(b"preamble\r\n--b\r\nX: y\r\n\r\n\r\n--b\r\n" + field + b"--b--\r\n") == "right"
    quoted = b"--b\r\ncontent-disposition:form-data;name=model\r\n\r\nright\r\n--b--"
    assert model(quoted, 'Multipart/Form-Data; boundary="b"') == "right"
    for broken in (b"", b"--b", b"--b\r\n" + name, b"--b\r\n" + name + b"\r\n\r\nx", b"--b--"):
        assert model(broken) is None
    assert model(b"--b\r\n" + field + b"--b--", "multipart/form-data") is None
    huge = b"--b\r\n" + name + b"\r\n\r\n" + b"x" * 5000 + b"\r\n--b--"
    assert model(huge) is None


def test_random_bytes_are_no_form_and_no_endless_loop() -> None:
    rng = random.Random(1)
    pieces = [b"--b", b"\r\n", b"\r\n\r\n", b"--", b'content-disposition: f; name="model"', b"x"]
    for _ in range(2_000):
        body = b"".join(rng.choices(pieces, k=12))
        parse_passed("multipart/form-data; boundary=b", body)


@pytest.mark.parametrize(
    ("raw", "code"), [(b"{", "not_json"), (b"[]", "bad_field"), (b'{"model": 1}', "bad_field")]
)
async def test_a_passed_body_must_be_an_object(stage: Stage, raw: bytes, code: str) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/embeddings", data=raw) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == code
    assert engine.bodies == []


async def test_a_model_is_answered_from_the_catalogue(stage: Stage) -> None:
    engine = await stage.engine(7, models=[BASE, LORA])
    await stage.start()
    await stage.announce()
    for path in ("org/sql", quote("org/sql", safe="")):
        async with stage.client.get(url_of(stage, f"/v1/models/{path}")) as got:
            assert got.status == 200
            assert await got.json() == {"id": "org/sql", "object": "model", "parent": MODEL}
    async with stage.client.head(f"/v1/models/{MODEL}") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with stage.client.get("/v1/models/other") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error == {
        "message": "The model `other` does not exist",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert engine.asked == []


async def test_an_engines_version_is_passed_on(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.get("/version") as response:
        assert response.status == 200
    assert engine.asked == ["GET /version"]
    assert "content-length" not in engine.headers[0]


UNKNOWN = (
    *("/flush_cache", "/update_weights", "/sleep", "/wake_up", "/pause", "/resume"),
    *("/start_profile", "/stop_profile", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    *("/collective_rpc", "/reset_prefix_cache", "/server_info", "/get_server_info", "/metrics"),
    *("/tokenizer_info", "/scale_elastic_ep", "/abort_requests", "/abort_request", "/debug"),
    *("/generate", "/invocations", "/inference/v1/generate", "/docs", "/openapi.json", "/"),
    *("/v1", "/v1/", "/v1/completions/", "/v1/models/", "/health/", "//v1/models"),
    *("/v1//completions", "/v1/chat/../completions", "/v1/completions%2f", "/V1/models"),
    *("/v1/%63ompletions", "/v1/embeddings;x", "/tokenize/../flush_cache", "/tokenize%3Fx"),
)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nothing_else_is_passed(stage: Stage, method: str) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    for path in UNKNOWN:
        async with stage.client.request(method, url_of(stage, path), data=b"{}") as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "unknown_url"
    assert engine.asked == []
    await until(lambda: stage.metric("requests_total", route="other", status="404") == len(UNKNOWN))


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "BREW"])
async def test_a_wrong_method_is_told_the_right_ones(stage: Stage, method: str) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    routes = {**TABLE, **{path: find(path) for path in WITH_ID}}
    for path, route in routes.items():
        if method in route.methods:
            continue
        async with stage.client.request(method, path) as response:
            assert response.status == 405
            assert response.headers["allow"] == ", ".join(route.methods)
            body = await response.read()
        assert (body == b"") if method == "HEAD" else json.loads(body)["error"]["message"]
    assert engine.asked == []


async def test_501_is_an_answer_and_no_failure_of_an_engine(stage: Stage) -> None:
    first = await stage.engine(1, behaviour=status(501, '{"error": "no such task"}'))
    second = await stage.engine(2, behaviour=status(501, '{"error": "no such task"}'))
    await stage.start()
    await stage.announce()
    for _ in range(8):
        async with stage.client.post("/pooling", json={"input": "a"}) as response:
            assert response.status == 501
            assert await response.text() == '{"error": "no such task"}'
    assert len(first.bodies) + len(second.bodies) == 8
    assert stage.metric("attempts_failed_total", reason="status_5xx") == 0


async def test_a_route_that_an_engine_lacks_is_its_404(stage: Stage) -> None:
    async def missing(_: web.Request) -> web.StreamResponse:
        raise web.HTTPNotFound(text='{"detail": "Not Found"}')

    await stage.engine(1, behaviour=missing)
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/score", json={"text_1": "a"}) as response:
        assert (response.status, await response.text()) == (404, '{"detail": "Not Found"}')


def test_labels_of_routes_are_a_closed_set() -> None:
    routes = [*TABLE.values(), *(route for _, route in PATTERNS)]
    assert {"other", *(route.label for route in routes)} == LABELS
