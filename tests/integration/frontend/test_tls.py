"""Engines at `https://`: verified on every way to them, and failures stay in the log."""

import asyncio
import datetime as dt
import io
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from tests.conformance.log.certificates import Authority, write_identity
from tests.integration.frontend.stage import (
    MODEL,
    Behaviour,
    Stage,
    complete,
    die,
    streamed,
    until,
)

BODY = {"model": MODEL, "prompt": "twelve chars"}
CONNECT = "connect"
NO_PROBES_S = 1e6  # a probe would take the engine out before a request has tried it
PAST = dt.datetime(2020, 1, 2, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Trust:
    """A CA that signs the engines' certificates, and its file."""

    authority: Authority
    ca_file: Path
    folder: Path

    def server(self, name: str = "127.0.0.1", *, demands: bool = False) -> ssl.SSLContext:
        """TLS of an engine with this name; it may demand a client's certificate of the CA."""
        context = self.authority.context(name)
        if demands:
            self.authority.demand(context)
        return context


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    authority = Authority()
    return Trust(authority, authority.write(tmp_path / "ca.pem"), tmp_path)


def only(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_trusted_engine_is_reached_on_every_way(
    stage: Stage, trust: Trust, host: str, version: ssl.TLSVersion
) -> None:
    adapter = {"id": "adapter", "parent": MODEL}
    engine = await stage.engine(
        7, tls=only(trust.server(host), version), host=host, models=[adapter]
    )
    await stage.start(ask_engine=True, engine_ca_file=trust.ca_file, probe_interval_s=0.01)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 200
        assert response.headers["x-kvatlas-worker"] == "7/0"
    assert len(engine.tokenized) == 1
    await until(lambda: any(m["id"] == "adapter" for m in stage.frontend.models.listing()))
    worker = stage.frontend.fleet.worker(0)
    stage.frontend.fleet.unreachable(worker, 0.0, refused=True)
    await until(lambda: not worker.breaker.failures)  # a probe reached it
    assert stage.metric("probes_failed_total") == 0
    assert stage.metric("attempts_failed_total", reason=CONNECT) == 0


async def test_a_connection_is_used_again(stage: Stage, trust: Trust) -> None:
    ports: set[int] = set()

    async def remember(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return await complete(request)

    await stage.engine(7, behaviour=remember, tls=trust.server())
    await stage.start(engine_ca_file=trust.ca_file)
    await stage.announce()
    for _ in range(5):
        async with stage.client.post("/v1/completions", json=BODY) as response:
            assert response.status == 200
    assert len(ports) == 1


async def test_large_bodies_and_answers_pass_whole(stage: Stage, trust: Trust) -> None:
    large = b"x" * 3_000_000

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=large, content_type="application/json")

    engine = await stage.engine(7, behaviour=answer, tls=trust.server())
    await stage.start(engine_ca_file=trust.ca_file)
    await stage.announce()
    body = json.dumps(BODY | {"user": "u" * 2_000_000}).encode()
    async with stage.client.post("/v1/completions", data=io.BytesIO(body)) as response:
        assert await response.read() == large
    assert engine.sizes == [len(body)]


async def test_a_stream_arrives_event_by_event_and_its_end_reaches_the_engine(
    stage: Stage, trust: Trust
) -> None:
    events = [f"data: {number}\n\n".encode() for number in range(3)]
    behaviour = streamed(*events, then="wait")
    engine = await stage.engine(7, behaviour=behaviour, tls=trust.server())
    await stage.start(engine_ca_file=trust.ca_file)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY | {"stream": True}) as response:
        assert await response.content.readexactly(len(b"".join(events))) == b"".join(events)
    await asyncio.wait_for(engine.left.wait(), 10)


@pytest.mark.parametrize("behaviour", [die, streamed(then="die")])
async def test_an_engine_that_dies_behind_a_good_handshake_has_died(
    stage: Stage, trust: Trust, behaviour: Behaviour
) -> None:
    await stage.engine(7, behaviour=behaviour, tls=trust.server())
    await stage.start(engine_ca_file=trust.ca_file)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 502
    assert stage.metric("attempts_failed_total", reason="died") == 1


async def test_a_stream_that_breaks_ends_with_an_error_event(stage: Stage, trust: Trust) -> None:
    behaviour = streamed(b"data: 1\n\n", then="die")
    await stage.engine(7, behaviour=behaviour, tls=trust.server())
    await stage.start(engine_ca_file=trust.ca_file)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY | {"stream": True}) as response:
        whole = await response.read()
    assert whole.startswith(b"data: 1\n\n")
    assert b"engine_died" in whole


async def assert_failed(stage: Stage, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Engine 7 cannot be reached for this reason, which only the log names; engine 8 answers."""
    await stage.engine(8)
    await stage.announce(list_models=False)
    stage.indexers.matches = [(7, 0, 3)]
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 200
        assert response.headers["x-kvatlas-worker"] == "8/0"
    assert stage.metric("attempts_failed_total", reason=CONNECT) == 1
    assert reason in caplog.text
    await stage.announce(stage.record(7), list_models=False)
    async with stage.client.post("/v1/completions", json=BODY) as response:
        text = await response.text()
        assert response.status == 502
        assert json.loads(text)["error"]["code"] == "engines_failed"
        assert "TLS" not in text
        assert "certificate" not in text


async def test_an_engine_of_an_unknown_ca_is_not_asked(
    stage: Stage, trust: Trust, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await stage.engine(7, tls=Authority().context("127.0.0.1"))
    await stage.start(engine_ca_file=trust.ca_file, probe_interval_s=NO_PROBES_S)
    await assert_failed(stage, caplog, "UnknownIssuer")
    assert engine.asked == []


async def test_the_systems_cas_are_trusted_by_default_and_no_others(
    stage: Stage, trust: Trust, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await stage.engine(7, tls=trust.server())
    await stage.start(probe_interval_s=NO_PROBES_S)
    await assert_failed(stage, caplog, "UnknownIssuer")
    assert engine.asked == []


@pytest.mark.parametrize("names", [("localhost", "elsewhere"), ("127.0.0.1", "localhost")])
async def test_a_certificate_of_another_host_is_refused(
    stage: Stage,
    trust: Trust,
    caplog: pytest.LogCaptureFixture,
    names: tuple[str, str],
) -> None:
    host, name = names
    engine = await stage.engine(7, tls=trust.server(name), host=host)
    await stage.start(engine_ca_file=trust.ca_file, probe_interval_s=NO_PROBES_S)
    await assert_failed(stage, caplog, "certificate not valid for name")
    assert engine.asked == []


async def test_an_expired_certificate_is_refused(
    stage: Stage, trust: Trust, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await stage.engine(7, tls=trust.authority.context("127.0.0.1", not_after=PAST))
    await stage.start(engine_ca_file=trust.ca_file, probe_interval_s=NO_PROBES_S)
    await assert_failed(stage, caplog, "expired")
    assert engine.asked == []


async def test_an_engine_without_tls_is_refused_at_https(
    stage: Stage, trust: Trust, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await stage.engine(7)
    engine.url = engine.url.replace("http:", "https:")
    await stage.start(engine_ca_file=trust.ca_file, probe_interval_s=NO_PROBES_S)
    await assert_failed(stage, caplog, "TLS: ")
    assert engine.asked == []


async def test_an_engine_with_tls_fails_at_http(stage: Stage, trust: Trust) -> None:
    engine = await stage.engine(7, tls=trust.server())
    engine.url = engine.url.replace("https:", "http:")
    await stage.start(engine_ca_file=trust.ca_file, probe_interval_s=NO_PROBES_S)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 502
    failed = [stage.metric("attempts_failed_total", reason=r) for r in ("died", "protocol")]
    assert sum(failed) == 1
    assert engine.asked == []


@pytest.fixture
async def silent() -> AsyncIterator[int]:
    """A server that accepts and never speaks; its port."""

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_handshake_has_no_more_than_the_connect_timeout(
    stage: Stage, silent: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await stage.engine(7)
    engine.url = f"https://127.0.0.1:{silent}"
    await stage.start(connect_timeout_s=0.1, probe_interval_s=NO_PROBES_S)
    await assert_failed(stage, caplog, "no connection in time")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_engine_that_demands_a_certificate_gets_it(
    stage: Stage, trust: Trust, version: ssl.TLSVersion
) -> None:
    context = only(trust.server(demands=True), version)
    certificate, key = write_identity(trust.authority.ca.issue_cert("frontend"), trust.folder)
    engine = await stage.engine(7, tls=context)
    await stage.start(
        ask_engine=True,
        engine_ca_file=trust.ca_file,
        engine_client_cert=certificate,
        engine_client_key=key,
    )
    await stage.announce()
    async with stage.client.post("/v1/completions", json=BODY) as response:
        assert response.status == 200
    assert len(engine.tokenized) == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shows_foreign", [False, True])
async def test_an_engine_that_misses_a_certificate_cannot_be_connected_to(
    stage: Stage,
    trust: Trust,
    caplog: pytest.LogCaptureFixture,
    version: ssl.TLSVersion,
    shows_foreign: bool,
) -> None:
    context = only(trust.server(demands=True), version)
    engine = await stage.engine(7, tls=context)
    certificate = key = None
    if shows_foreign:
        certificate, key = write_identity(Authority().ca.issue_cert("frontend"), trust.folder)
    await stage.start(
        engine_ca_file=trust.ca_file,
        engine_client_cert=certificate,
        engine_client_key=key,
        probe_interval_s=NO_PROBES_S,
    )
    await assert_failed(stage, caplog, "TLS: ")
    assert engine.asked == []
