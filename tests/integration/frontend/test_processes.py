"""`kvatlas frontend --processes 2`: real processes that are one frontend to everybody else."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from kvatlas_client import WorkerKey
from tests.integration.frontend.test_process import (
    ANYWHERE,
    BLOCK_SIZE,
    MODEL,
    Indexer,
    Service,
    ended,
    service,
    spawn,
)

PROCESSES = 2
BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 2}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what another process or task does; the test's timeout bounds it."""
    while True:
        if await condition():
            return
        await asyncio.sleep(0.01)


@dataclass
class Engines:
    """Engines that answer once they may; `held` are the requests that wait on each."""

    urls: list[str] = field(default_factory=list[str])
    held: Counter[int] = field(default_factory=Counter[int])
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, stack: AsyncExitStack, number: int) -> None:
        app = web.Application(handler_args={"handler_cancellation": True})

        async def infer(request: web.Request) -> web.Response:
            await request.read()
            self.held[number] += 1
            try:
                await self.may_answer.wait()
            finally:
                self.held[number] -= 1
            return web.json_response({"choices": [{"text": "ok"}]})

        async def listing(_: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": [{"id": MODEL}]})

        async def health(_: web.Request) -> web.Response:
            return web.Response()

        app.router.add_post("/v1/completions", infer)
        app.router.add_get("/v1/models", listing)
        app.router.add_get("/health", health)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")


@dataclass
class Group:
    """A running frontend of several processes."""

    service: Service
    engines: Engines
    client: aiohttp.ClientSession  # a connection for every request at a time

    @property
    def pid(self) -> int:
        return self.service.process.pid

    async def admin(self, path: str, address: str | None = None) -> tuple[int, str]:
        address = address or self.service.ready["admin"]
        async with aiohttp.ClientSession() as fresh, fresh.get(f"http://{address}{path}") as answer:
            return answer.status, await answer.text()

    async def processes(self) -> list[dict[str, Any]]:
        async with aiohttp.ClientSession() as fresh:
            url = f"http://{self.service.ready['admin']}/processes"
            async with fresh.get(url) as answer:
                return await answer.json()

    async def metric(self, name: str, address: str | None = None, **labels: str) -> float:
        _, text = await self.admin("/metrics", address)
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"kvatlas_frontend_{name}" and labels.items() <= sample.labels.items()
        )

    async def until_metric(self, wanted: float, name: str, **labels: str) -> None:
        async def is_so() -> bool:
            return await self.metric(name, **labels) == wanted

        await until(is_so)

    async def until_status(self, wanted: int, address: str | None = None) -> None:
        async def is_so() -> bool:
            return (await self.admin("/readyz", address))[0] == wanted

        await until(is_so)

    async def each_is_ready(self) -> None:
        """`/readyz` of the whole tells of one process at least; tests want all."""
        for process in await self.processes():
            await self.until_status(200, process["admin"])

    async def complete(self) -> int:
        async with self.client.post("/v1/completions", json=BODY) as response:
            await response.read()
            return response.status

    async def complete_alone(self) -> int:
        """A request on a connection of its own."""
        url = f"http://{self.service.ready['listen']}/v1/completions"
        async with aiohttp.ClientSession() as fresh, fresh.post(url, json=BODY) as response:
            await response.read()
            return response.status

    async def until_held(self, count: int) -> None:
        async def is_so() -> bool:
            return self.engines.held.total() == count

        await until(is_so)


def words(*indexers: Indexer) -> Sequence[str]:
    return (
        *("frontend", *ANYWHERE, "--model", MODEL, "--block-size", str(BLOCK_SIZE)),
        *("--indexer", *(indexer.address for indexer in indexers)),
        *("--processes", str(PROCESSES), "--policy", "least-loaded"),
    )


@asynccontextmanager
async def group(engines: int, *more: str) -> AsyncGenerator[Group]:
    async with AsyncExitStack() as stack:
        made = Engines()
        indexer = Indexer()
        indexer.serve()
        for number in range(engines):
            await made.serve(stack, number)
            indexer.header = replace(indexer.header, worker=WorkerKey(number))
            indexer.tell(made.urls[number], np.array([number + 1], dtype=np.uint64))
        running = await stack.enter_async_context(service(*words(indexer), *more))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(
                f"http://{running.ready['listen']}", connector=aiohttp.TCPConnector(limit=0)
            )
        )
        built = Group(running, made, client)
        await built.until_status(200)
        await built.each_is_ready()
        yield built


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; nobody here is its parent.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def until_gone(pids: Sequence[int]) -> None:
    async def is_so() -> bool:
        return not any(is_running(pid) for pid in pids)

    await until(is_so)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_burst_spreads_evenly_and_all_processes_take_part() -> None:
    async with group(8) as running:
        assert running.service.ready["processes"] == PROCESSES
        requests = [asyncio.create_task(running.complete()) for _ in range(64)]
        await running.until_held(64)
        held = running.engines.held
        assert all(6 <= held[engine] <= 10 for engine in range(8)), held
        assert await running.metric("requests_in_flight") == 64
        for process in await running.processes():
            assert 28 <= await running.metric("requests_in_flight", process["admin"]) <= 36
        running.engines.may_answer.set()
        assert await asyncio.gather(*requests) == [200] * 64
        await running.until_metric(64, "requests_total", route="completions", status="200")
        await running.until_metric(0, "requests_in_flight")
        assert await running.metric("processes") == PROCESSES
        assert await running.metric("process_up") == PROCESSES
        assert await running.metric("routing_seconds_count", stage="total") == 64
        assert await running.metric("workers", state="live") == 8
        # A process answers what the supervisor does not know; here it does not know it either.
        assert await running.admin("/nothing/of/ours?a=b") == (404, "404: Not Found")


async def test_connections_that_come_one_by_one_take_turns() -> None:
    async with group(1) as running:
        running.engines.may_answer.set()
        for _ in range(10):
            assert await running.complete_alone() == 200
        await running.until_metric(10, "requests_total")
        served = [
            await running.metric("requests_total", process["admin"])
            for process in await running.processes()
        ]
        assert sum(served) == 10
        assert min(served) >= 3, served


async def test_a_process_that_is_killed_costs_only_its_own_requests() -> None:
    async with group(2) as running:
        requests = [asyncio.create_task(running.complete()) for _ in range(20)]
        await running.until_held(20)
        victim, other = await running.processes()
        lost = await running.metric("requests_in_flight", victim["admin"])
        assert lost + await running.metric("requests_in_flight", other["admin"]) == 20
        assert lost > 0
        total = await running.metric("requests_total")
        decisions = await running.metric("routing_seconds_count", stage="total")

        os.kill(victim["pid"], signal.SIGKILL)
        await running.until_held(20 - int(lost))
        running.engines.may_answer.set()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert results.count(200) == 20 - lost
        assert sum(isinstance(result, aiohttp.ClientError) for result in results) == lost

        # The port refuses nobody while one of two is started again.
        served = 0
        while (
            await running.metric("process_restarts_total") < 1
            or len([process for process in await running.processes() if process["admin"]])
            < PROCESSES
        ):
            assert await running.complete_alone() == 200
            served += 1
            assert (await running.admin("/readyz"))[0] == 200
            # The counts of the dead one stay.
            assert await running.metric("requests_total") >= total
            assert await running.metric("routing_seconds_count", stage="total") >= decisions
        assert served > 0
        again, same = await running.processes()
        assert again["pid"] != victim["pid"]
        assert same == other
        await running.each_is_ready()
        await running.until_metric(0, "requests_in_flight")

        # Its requests count on no worker any more: new ones spread evenly.
        running.engines.may_answer.clear()
        requests = [asyncio.create_task(running.complete_alone()) for _ in range(20)]
        await running.until_held(20)
        assert all(8 <= running.engines.held[engine] <= 12 for engine in range(2))
        running.engines.may_answer.set()
        assert await asyncio.gather(*requests) == [200] * 20


async def test_requests_in_flight_end_before_the_processes_do() -> None:
    async with group(1, "--grace-s", "30") as running:
        pids = [process["pid"] for process in await running.processes()]
        requests = [asyncio.create_task(running.complete()) for _ in range(8)]
        await running.until_held(8)
        running.service.process.send_signal(signal.SIGTERM)
        await running.until_status(503)

        async def is_closed() -> bool:
            try:
                await asyncio.wait_for(running.complete_alone(), 0.2)
            except aiohttp.ClientConnectionError:
                return True
            except TimeoutError:
                pass  # a process had accepted it before it stopped
            return False

        await until(is_closed)
        running.engines.may_answer.set()
        assert await asyncio.gather(*requests) == [200] * 8
        _, errors = await running.service.process.communicate()
        assert running.service.process.returncode == 0
        await until_gone(pids)
        assert b"Traceback" not in errors
        assert b"leaked" not in errors
        for process in ("supervisor", "0", "1"):
            assert f" process={process} ".encode() in errors


async def test_a_second_signal_ends_all_at_once() -> None:
    async with group(1, "--grace-s", "60") as running:
        pids = [process["pid"] for process in await running.processes()]
        request = asyncio.create_task(running.complete())
        await running.until_held(1)
        running.service.process.send_signal(signal.SIGTERM)
        await running.until_status(503)
        running.service.process.send_signal(signal.SIGTERM)
        assert await running.service.stop() == -signal.SIGTERM
        await until_gone(pids)
        with pytest.raises(aiohttp.ClientError):
            await request


async def test_the_processes_end_with_a_supervisor_that_is_killed() -> None:
    async with group(1, "--grace-s", "0") as running:
        pids = [process["pid"] for process in await running.processes()]
        running.service.process.kill()
        await running.service.process.communicate()
        await until_gone(pids)


async def test_a_process_that_hangs_delays_nobody_for_long() -> None:
    async with group(1, "--grace-s", "0") as running:
        running.engines.may_answer.set()
        hung, _ = await running.processes()
        await running.until_metric(2, "process_up")
        os.kill(hung["pid"], signal.SIGSTOP)
        try:
            await running.until_metric(1, "process_up")
            assert await running.metric("process_up", process="0") == 0
            assert (await running.admin("/readyz"))[0] == 200
            for _ in range(4):
                assert await running.complete_alone() == 200
            os.kill(hung["pid"], signal.SIGCONT)
            await running.until_metric(2, "process_up")
            os.kill(hung["pid"], signal.SIGSTOP)
            # It cannot end in order, so it is killed after the grace period.
            assert await running.service.stop() == 0
            await until_gone([hung["pid"]])
        finally:
            if is_running(hung["pid"]):
                os.kill(hung["pid"], signal.SIGKILL)


async def test_a_start_that_cannot_work_ends_with_one_line_as_with_one_process(
    tmp_path: Path,
) -> None:
    (tmp_path / "tokenizer.json").write_text("no tokenizer")
    indexer = Indexer()
    indexer.serve()
    taken = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    async with taken:
        attempts = (
            ("--listen", f"127.0.0.1:{port}"),
            ("--admin", f"127.0.0.1:{port}"),
            ("--policy", "kv-awre"),
            ("--tokenizer", str(tmp_path)),
            ("--processes", "0"),
        )
        many = [ended(*words(indexer), *extra) for extra in attempts[:4]]
        many.append(ended("frontend", *ANYWHERE, *attempts[4]))
        one = [ended(*words(indexer), *extra, "--processes", "1") for extra in attempts[:4]]
        results = await asyncio.gather(*many, *one)
    for result in results:
        status, out, errors = result
        assert status in {1, 2}
        assert out == ""
        assert len(errors.splitlines()) == 1, errors
    for of_many, of_one in zip(results[:4], results[5:], strict=True):
        assert of_many == of_one


async def test_indexers_of_another_cell_end_all_processes() -> None:
    indexer = Indexer(block_size=512)
    indexer.serve()
    status, _, errors = await ended(*words(indexer))
    last = errors.splitlines()[-1]
    assert status == 1
    assert "has 512" in last
    assert "Traceback" not in errors


async def test_a_stop_before_all_are_ready_ends_in_order() -> None:
    indexer = Indexer()
    indexer.serve()
    process = await spawn(*words(indexer), "--log-level", "debug")

    async def have_begun() -> bool:
        return len(children(process.pid)) == PROCESSES

    await until(have_begun)
    pids = children(process.pid)
    process.terminate()
    out, errors = await process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in errors
    await until_gone(pids)
    assert out.count(b"\n") <= 1
