"""The OpenAI API over HTTP: reads requests, has them routed and carried out, counts how they ended.

1. `Api.handle` finds the route and turns every error into an OpenAI error object.
2. `_read_body` takes the body in, within a bound.
3. `parse_body` and the model catalog say what is asked.
4. The workflow chooses; the executor answers.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from kvatlas_chassis import FatalError, HostPort
from kvatlas_frontend.api.body import Route, parse_body
from kvatlas_frontend.api.errors import ApiError, RefusedError
from kvatlas_frontend.api.reasons import Refusal
from kvatlas_frontend.fleet.models import ModelCatalog
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.proxy.executor import Call, Executor, nobody_answered
from kvatlas_frontend.routing.slots import RoutingRequest
from kvatlas_frontend.routing.workflow import SingleDispatch

log = logging.getLogger(__name__)

_INFERENCE: Final[dict[str, Route]] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
}
_LABELS: Final = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/v1/models": "models",
    "/health": "health",
}
_CLIENT_LEFT: Final = 499  # as nginx counts it; never sent
_FAILED: Final = 500
_JSON: Final = "application/json"


class Api:
    """Handles the requests of one listening address."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        models: ModelCatalog,
        workflow: SingleDispatch,
        executor: Executor,
        metrics: FrontendMetrics,
        request_bytes_max: int,
        now_s: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._models = models
        self._workflow = workflow
        self._executor = executor
        self._metrics = metrics
        self._request_bytes_max = request_bytes_max
        self._now_s = now_s

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, whatever becomes of it."""
        metrics = self._metrics
        metrics.in_flight.inc()
        status = _FAILED
        try:
            response = await self._answer(request)
            status = response.status
        except ApiError as error:
            if isinstance(error, RefusedError):
                metrics.refused.labels(error.reason.value).inc()
            status = error.status
            response = web.Response(status=status, body=error.body(), content_type=_JSON)
        except (aiohttp.ClientConnectionResetError, ConnectionResetError):
            # Only writing to the client raises this here; aiohttp ends the connection.
            status = _CLIENT_LEFT
            response = web.Response(status=status)
        except asyncio.CancelledError:
            status = _CLIENT_LEFT
            raise
        finally:
            metrics.in_flight.dec()
            label = _LABELS.get(request.path, "other")
            metrics.requests.labels(label, str(status)).inc()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        route = _INFERENCE.get(path)
        if route is not None:
            _require_method(request, "POST")
            return await self._infer(request, route)
        if path == "/v1/models":
            _require_method(request, "GET", "HEAD")
            body = msgspec.json.encode({"object": "list", "data": self._models.listing()})
            return web.Response(body=body, content_type=_JSON)
        if path == "/health":
            _require_method(request, "GET", "HEAD")
            if not self._fleet.is_any_available(self._now_s()):
                raise nobody_answered(0)
            return web.Response(text="")
        raise RefusedError(
            Refusal.UNKNOWN_ROUTE, 404, f"Unknown request URL: {request.method} {path}"
        )

    async def _infer(self, request: web.BaseRequest, route: Route) -> web.StreamResponse:
        arrived_s = self._now_s()
        try:
            body = await _read_body(request, self._request_bytes_max)
        except web.RequestPayloadError:
            raise RefusedError(
                Refusal.NOT_JSON, 400, "The request body could not be read"
            ) from None
        began_s = time.perf_counter()
        parsed = parse_body(route, body)
        if not len(self._fleet):
            raise nobody_answered(0)  # before any work is spent on the prompt
        model = self._models.route(parsed.model)
        if model is None:
            raise RefusedError(
                Refusal.UNKNOWN_MODEL,
                404,
                f"The model `{parsed.model}` does not exist",
                param="model",
            )
        context, plan = await self._workflow.route(RoutingRequest(parsed, model))
        self._metrics.stage["total"].observe(time.perf_counter() - began_s)
        if plan is not None and plan.reason.is_fallback:
            self._metrics.fallbacks.labels(plan.reason.value).inc()
        call = Call(request, request.path, body, arrived_s)
        return await self._executor.execute(call, context, plan)


class ApiServer:
    """Listens; owns its socket. `close` refuses new connections and lets requests end."""

    def __init__(self, runner: web.ServerRunner, address: HostPort) -> None:
        self._runner = runner
        self.address = address

    @classmethod
    async def start(cls, api: Api, listen: HostPort, *, grace_s: float) -> "ApiServer":
        """Listen.

        Raises:
            FatalError: the address cannot be used; the message names it.
        """
        # No router and no middleware: four paths, and each would cost every request.
        server = web.Server(api.handle, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=grace_s)
        await runner.setup()
        site = web.TCPSite(runner, listen.host, listen.port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise FatalError(f"cannot listen on --listen {listen}: {error.strerror}") from None
        host, port = runner.addresses[0][:2]
        return cls(runner, HostPort(host, port))

    async def close(self) -> None:
        """Stop listening; wait for requests in flight within the grace period, then end them."""
        await self._runner.cleanup()


async def _read_body(request: web.BaseRequest, bytes_max: int) -> bytes:
    """The body, decoded if it came compressed.

    Raises:
        RefusedError: 413; it is larger than `bytes_max`. No more than that is ever held.
    """
    length = request.content_length
    if length is not None and length > bytes_max:
        raise _too_large(bytes_max)
    if request.headers.get("Expect", "").lower() == "100-continue":
        # The client waits for leave to send a large body, and has just been spared a refused one.
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # as aiohttp's own routes do: these bytes are no answer
    first = await request.content.readany()
    if request.content.at_eof():
        if len(first) > bytes_max:
            raise _too_large(bytes_max)
        return first
    parts = [first]
    size = len(first)
    while chunk := await request.content.readany():
        size += len(chunk)
        if size > bytes_max:
            raise _too_large(bytes_max)
        parts.append(chunk)
    return b"".join(parts)


def _too_large(bytes_max: int) -> RefusedError:
    return RefusedError(
        Refusal.TOO_LARGE, 413, f"The request body is larger than {bytes_max} bytes"
    )


def _require_method(request: web.BaseRequest, method: str, also: str = "") -> None:
    if request.method not in (method, also):
        raise RefusedError(
            Refusal.BAD_METHOD, 405, f"{request.path} takes {method}, not {request.method}"
        )
