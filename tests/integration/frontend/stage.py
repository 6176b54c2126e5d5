"""A frontend in this process between real sockets: scripted indexers before it, engines behind."""

import asyncio
import json
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from kvatlas_chassis import HostPort
from kvatlas_client import Load, Matches, WorkerKey, WorkerState
from kvatlas_frontend.assembly import Frontend, running
from kvatlas_frontend.fleet.watch import CellMismatchError
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord
from kvatlas_frontend.routing.check import check
from kvatlas_frontend.routing.interfaces import NoIndexerError
from kvatlas_frontend.routing.plugins import built_in
from kvatlas_frontend.routing.profile import load_profile
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_frontend.tokens.chat_template import ChatTemplate
from kvatlas_frontend.tokens.encoder import Encoder

MODEL = "base-model"
BLOCK_SIZE = 4
_REMEMBERED_MAX = 100_000

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ByteEncoder:
    """A token a byte: prompts whose ids a test can read."""

    name = "bytes"
    inline_chars_max = 64

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)
        return (
            np.concatenate([np.array([256], dtype=np.uint32), ids]) if add_special_tokens else ids
        )


class ScriptedIndexers:
    """Answers what the test says: who there is, who holds what."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[FleetChange | Exception] = asyncio.Queue()
        self.matches: list[tuple[int, int, int]] = []  # worker_id, dp_rank, depth
        self.failure: Exception | None = None
        self.asked: list[NDArray[np.uint64]] = []

    async def watch(self) -> AsyncIterator[FleetChange]:
        while True:
            change = await self.changes.get()
            if isinstance(change, Exception):
                raise change
            yield change

    async def find(
        self, chunk_hashes: NDArray[np.uint64], *, limit: int, deadline_ms: float
    ) -> Matches:
        del limit, deadline_ms
        self.asked.append(chunk_hashes)
        if self.failure is not None:
            raise self.failure
        ids, ranks, depths = zip(*self.matches, strict=True) if self.matches else ((), (), ())
        return Matches(
            np.array(ids, dtype=np.uint64),
            np.array(ranks, dtype=np.uint32),
            np.minimum(np.array(depths, dtype=np.uint32), len(chunk_hashes)).astype(np.uint32),
            "replica:1",
        )


@dataclass
class Engine:
    """An HTTP server that does what the test says, and remembers what it was asked."""

    url: str
    models: list[dict[str, Any]]
    behaviour: Behaviour
    bodies: list[bytes] = field(default_factory=list[bytes])
    sizes: list[int] = field(default_factory=list[int])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    asked: list[str] = field(default_factory=list[str])  # method and target of each request
    tokenized: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    tokenize_fails: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a request was cancelled

    async def infer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append(f"{request.method} {request.raw_path}")
        self.sizes.append(len(body))
        if len(body) < _REMEMBERED_MAX:
            self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        try:
            return await self.behaviour(request)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def tokenize(self, request: web.Request) -> web.Response:
        if self.tokenize_fails:
            return web.Response(status=501)
        self.asked.append(f"{request.method} {request.raw_path}")
        question = await request.json()
        self.tokenized.append(question)
        text = question.get("prompt") or json.dumps(question["messages"])
        return web.json_response({"tokens": list(text.encode()), "count": len(text)})


async def complete(_: web.Request) -> web.StreamResponse:
    return web.json_response(
        {
            "choices": [{"text": "ok"}],
            "usage": {
                "prompt_tokens": 13,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens": 1,
            },
        },
        headers={"Server": "engine-7.internal", "X-Request-Id": "abc", "Set-Cookie": "a=b"},
    )


def streamed(*chunks: bytes, then: str = "end") -> Behaviour:
    """An SSE stream of `chunks`; then it ends, dies, or goes on for ever."""

    async def behaviour(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then == "die":
            await asyncio.sleep(0)
            assert request.transport is not None
            request.transport.close()
        elif then == "wait":
            await asyncio.Event().wait()
        return response

    return behaviour


async def die(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def status(code: int, text: str = "", **headers: str) -> Behaviour:
    async def behaviour(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=text, headers=headers)

    return behaviour


class Stage:
    """Everything a test drives."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.indexers = ScriptedIndexers()
        self.engines: dict[WorkerKey, Engine] = {}
        self.client: aiohttp.ClientSession
        self.frontend: Frontend

    async def engine(
        self,
        worker_id: int,
        dp_rank: int = 0,
        *,
        behaviour: Behaviour = complete,
        models: list[dict[str, Any]] | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> Engine:
        """Start an engine; `host`: its name in the address that the frontend is told."""
        served = [{"id": MODEL, "object": "model", "parent": None}] if models is None else models
        engine = Engine("", served, behaviour)
        app = web.Application(client_max_size=0, handler_args={"handler_cancellation": True})
        app.router.add_post("/tokenize", engine.tokenize)

        async def listing(_: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": engine.models})

        async def health(_: web.Request) -> web.Response:
            return web.Response()

        app.router.add_get("/v1/models", listing)
        app.router.add_get("/health", health)
        app.router.add_route("*", "/{rest:.*}", engine.infer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        port = 0

        async def stop() -> None:
            await runner.cleanup()
            # A TLS connection closes a few turns of the event loop later.
            await until(lambda: not _has_socket_on(port))

        self._stack.push_async_callback(stop)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        port = runner.addresses[0][1]
        scheme = "http" if tls is None else "https"
        engine.url = f"{scheme}://{host}:{port}"
        self.engines[WorkerKey(worker_id, dp_rank)] = engine
        return engine

    async def start(
        self,
        *,
        policy: str = "kv-aware",
        encoder: Encoder | None = None,
        template: ChatTemplate | None = None,
        ask_engine: bool = False,
        **settings: Any,  # noqa: ANN401 - any setting
    ) -> None:
        loaded = FrontendSettings(
            listen=HostPort("127.0.0.1", 0),
            indexer=(HostPort("127.0.0.1", 1),),
            model=MODEL,
            block_size=BLOCK_SIZE,
            policy=policy,
            grace_s=0.2,
            **settings,
        )
        profile = check(load_profile(policy), built_in())
        chosen = None if ask_engine else encoder or ByteEncoder()
        self.frontend = await self._stack.enter_async_context(
            running(loaded, profile, self.indexers, chosen, template)
        )
        self.client = await self._stack.enter_async_context(
            aiohttp.ClientSession(base_url=f"http://{self.frontend.api.address}")
        )

    def record(
        self,
        worker_id: int,
        dp_rank: int = 0,
        *,
        state: WorkerState = WorkerState.LIVE,
        url: str | None = None,
        requests: int | None = None,
        epoch: int = 1,
    ) -> WorkerRecord:
        key = WorkerKey(worker_id, dp_rank)
        load = None if requests is None else Load(requests, 0, 0.0)
        return WorkerRecord(key, state, epoch, url or self.engines[key].url, load)

    async def announce(
        self, *records: WorkerRecord, full: bool = True, list_models: bool = True
    ) -> None:
        """Tell of workers and wait until the frontend has taken it in."""
        if not records:
            records = tuple(self.record(*key) for key in self.engines)
        self.indexers.changes.put_nowait(FleetChange(full, records, ()))
        await until(
            lambda: all(
                record.key in self.frontend.fleet.rows
                and self.frontend.fleet.worker(self.frontend.fleet.rows[record.key]).record
                is record
                for record in records
            )
        )
        if list_models:
            await self.frontend.models.poll_once(self.client)

    def metric(self, name: str, **labels: str) -> float:
        value = self.frontend.metrics.registry.get_sample_value(f"kvatlas_frontend_{name}", labels)
        return value or 0.0

    def nothing_in_flight(self) -> bool:
        columns = self.frontend.fleet.columns
        return (
            not columns.requests.any()
            and not columns.prefill_tokens.any()
            and not columns.active_tokens.any()
            and self.metric("requests_in_flight") == 0
        )


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the event loop's other tasks to make `condition` true; the test's timeout bounds it."""
    while not condition():  # noqa: ASYNC110 - what is waited for is another task's plain state
        await asyncio.sleep(0.001)


def _has_socket_on(port: int) -> bool:
    """Whether this process has a socket open whose own port this is."""
    for entry in Path("/proc/self/fd").iterdir():
        number = int(entry.name)
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
        except OSError:
            continue  # closed meanwhile: it was the listing's own
        with socket.socket(fileno=os.dup(number)) as copy:
            if copy.family == socket.AF_INET and copy.getsockname()[1] == port:
                return True
    return False


NO_INDEXER = NoIndexerError("scripted")
MISMATCH = CellMismatchError("block size 16 here, 512 in the cell")
