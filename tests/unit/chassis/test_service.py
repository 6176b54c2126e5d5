"""A service says it is ready in one line, tells its health, and ends when it is told."""

import asyncio
import json
import logging
import os
import signal
import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from kvatlas_chassis import (
    AdminServer,
    FatalError,
    HostPort,
    ServiceSettings,
    StopSignal,
    TaskSet,
    announce_ready,
    run_service,
    setup_logging,
)


async def get(address: HostPort, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}{path}") as response,
    ):
        return response.status, await response.text()


async def test_the_admin_port_tells_health_readiness_and_metrics() -> None:
    registry = CollectorRegistry()
    Counter("kvatlas_example_requests", "Requests.", registry=registry).inc(3)
    obstacles = ["the log is unreachable"]
    server = await AdminServer.start(HostPort("127.0.0.1", 0), registry, lambda: obstacles)
    try:
        assert await get(server.address, "/healthz") == (200, "ok\n")
        assert await get(server.address, "/readyz") == (503, "the log is unreachable\n")
        obstacles.clear()
        assert (await get(server.address, "/readyz"))[0] == 200
        status, text = await get(server.address, "/metrics")
        assert status == 200
        assert "kvatlas_example_requests_total 3.0" in text
    finally:
        await server.close()


async def test_a_port_in_use_is_one_line_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FatalError, match=f"cannot listen on --admin 127.0.0.1:{port}"):
            await AdminServer.start(HostPort("127.0.0.1", port), CollectorRegistry(), lambda: ())


def test_the_ready_line_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    announce_ready(listen=HostPort("127.0.0.1", 7), admin=HostPort("::1", 8), ranks=2)
    out = capsys.readouterr().out
    assert out.endswith("\n")
    assert json.loads(out) == {
        "ready": True,
        "listen": "127.0.0.1:7",
        "admin": "[::1]:8",
        "ranks": 2,
    }


def test_a_service_ends_with_0_on_a_signal(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(_: ServiceSettings) -> None:
        stop = StopSignal()
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()

    status = run_service(
        serve, ServiceSettings, service="indexer", argv=[], description="An example."
    )
    assert status == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("argv", "status", "line"), [([], 1, "no disk\n"), (["--nope"], 2, "kvatlas indexer: ")]
)
def test_a_fatal_error_is_one_line_and_its_status(
    argv: list[str], status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(_: ServiceSettings) -> None:
        await asyncio.sleep(0)
        raise FatalError("no disk")

    assert status == run_service(
        serve, ServiceSettings, service="indexer", argv=argv, description="An example."
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


async def test_a_task_that_fails_ends_the_wait_with_its_error() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise FatalError("the feed died")

    stop = StopSignal()
    tasks = TaskSet()
    survivor = tasks.start(asyncio.Event().wait(), name="survivor")
    tasks.start(fail(), name="failure")
    with pytest.raises(FatalError, match="the feed died"):
        await stop.wait(tasks)
    await tasks.close()
    assert survivor.cancelled()


def test_logs_are_lines_on_stderr_in_either_form(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        setup_logging("info", "json")
        logging.getLogger("kvatlas.example").info("worker %d", 7)
        entry = json.loads(capsys.readouterr().err)
        assert (entry["level"], entry["message"]) == ("info", "worker 7")
        setup_logging("warning", "text")
        logging.getLogger("kvatlas.example").info("unheard")
        logging.getLogger("kvatlas.example").warning("heard")
        assert capsys.readouterr().err.endswith("WARNING kvatlas.example: heard\n")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
