"""The HTTP server: vLLM's routes, and `/debug` for tests."""

from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvatlas_chassis import HostPort
from kvatlas_chassis.admin import bind
from kvatlas_mocker.bodies import ApiError, DetokenizeBody, TokenizeBody, parse
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.faults import FaultRequest
from kvatlas_mocker.generation import tokenize
from kvatlas_mocker.generation_handlers import GenerationHandlers
from kvatlas_mocker.messages import MessagesPages
from kvatlas_mocker.metrics import EngineMetrics
from kvatlas_mocker.pooling import PoolingPages
from kvatlas_mocker.responses import ResponsesPages

VERSION = "0.33.0"
"""The vLLM release whose interfaces are mocked."""

_BODY_BYTES_MAX = 64 * 1024 * 1024
_TIER = "device"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EngineServer:
    """The listening HTTP server; `close` releases it."""

    def __init__(self, runner: web.AppRunner, address: HostPort) -> None:
        self._runner = runner
        self.address = address

    @classmethod
    async def start(
        cls, listen: HostPort, engine: Engine, metrics: EngineMetrics
    ) -> "EngineServer":
        """Listen.

        Raises:
            FatalError: the address cannot be used.
        """
        app = web.Application(middlewares=[_errors], client_max_size=_BODY_BYTES_MAX)
        generations = GenerationHandlers(engine, metrics)
        pages = _Pages(engine, metrics)
        app.router.add_post("/v1/completions", generations.completions)
        app.router.add_post("/v1/chat/completions", generations.chat)
        app.router.add_get("/v1/models", pages.models)
        app.router.add_get("/health", pages.health)
        app.router.add_get("/version", pages.version)
        app.router.add_get("/metrics", pages.metrics)
        app.router.add_get("/kv_event_sources", pages.event_sources)
        app.router.add_post("/tokenize", pages.tokenize)
        app.router.add_post("/detokenize", pages.detokenize)
        PoolingPages(engine).add_to(app.router)
        MessagesPages(engine, generations).add_to(app.router)
        ResponsesPages(engine, generations).add_to(app.router)
        app.router.add_post("/reset_prefix_cache", pages.reset)
        app.router.add_get("/debug/cache", pages.cache)
        app.router.add_get("/debug/fault", pages.armed)
        app.router.add_post("/debug/fault", pages.fault)
        # Handler cancellation frees a request's blocks as soon as its client disconnects.
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=max(engine.settings.grace_s, 0.001),  # aiohttp takes 0 for no limit
        )
        await runner.setup()
        return cls(runner, await bind(runner, listen, what="listen"))

    async def close(self) -> None:
        """Stop listening and end open requests."""
        await self._runner.cleanup()


class _Pages:
    def __init__(self, engine: Engine, metrics: EngineMetrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._created = engine.epoch // 1_000_000

    async def models(self, _: web.Request) -> web.Response:
        settings = self._engine.settings
        data: list[dict[str, Any]] = [
            {
                "id": served.name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": served.name,
                "parent": None if served.lora_id is None else settings.model,
                "max_model_len": settings.context_tokens if served.lora_id is None else None,
                "permission": [],
            }
            for served in self._engine.served
        ]
        return _json({"object": "list", "data": data})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def event_sources(self, _: web.Request) -> web.Response:
        sources = [
            {
                "data_parallel_rank": rank.index,
                "endpoint": rank.event_stream.address.events,
                "replay_endpoint": rank.event_stream.address.replay,
                "topic": self._engine.settings.topic,
            }
            for rank in self._engine.ranks
            if rank.event_stream.address.events is not None
        ]
        return _json(sources)

    async def tokenize(self, http: web.Request) -> web.Response:
        body = parse(await http.read(), TokenizeBody)
        tokens = (await tokenize(self._engine, body)).tolist()
        strings = [self._engine.tokenizer.decode([t]) for t in tokens]
        return _json(
            {
                "count": len(tokens),
                "max_model_len": self._engine.settings.context_tokens,
                "tokens": tokens,
                "token_strs": strings if body.return_token_strs else None,
            }
        )

    async def detokenize(self, http: web.Request) -> web.Response:
        body = parse(await http.read(), DetokenizeBody)
        self._engine.find(body.model)
        try:
            return _json({"prompt": self._engine.tokenizer.decode(body.tokens)})
        except (ValueError, OverflowError) as error:
            raise ApiError(str(error), param="tokens") from None

    async def reset(self, _: web.Request) -> web.Response:
        """Clear the caches. As in vLLM, a rank with blocks in use keeps its cache without an error."""
        for rank in self._engine.ranks:
            rank.scheduler.cache.reset()
            rank.publish()
        return web.Response()

    async def cache(self, http: web.Request) -> web.Response:
        asked = http.query.get("dp_rank", "0")
        if not asked.isdecimal():
            raise ApiError(f"dp_rank {asked!r} is not a number", param="dp_rank")
        rank = self._engine.rank_at(int(asked))
        rank.publish()  # so that the answer equals the events, even during a step
        blocks = [
            [block_hash, _tokens(raw), parent]
            for block_hash, raw, parent in rank.scheduler.cache.cached()
        ]
        return _json({"epoch": self._engine.epoch, "blocks": {_TIER: blocks}})

    async def armed(self, _: web.Request) -> web.Response:
        return _json(self._engine.faults.armed())

    async def fault(self, http: web.Request) -> web.Response:
        order = parse(await http.read(), FaultRequest)
        self._engine.faults.arm(order)
        if order.restart:
            await self._engine.restart()
            self._metrics.reset()
        return _json(self._engine.faults.armed())


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return web.Response(body=error.body(), status=error.status, content_type="application/json")


def _json(document: Any) -> web.Response:  # noqa: ANN401 - any JSON
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


def _tokens(raw: bytes) -> list[int]:
    tokens = array("I")
    tokens.frombytes(raw)
    return tokens.tolist()
