"""The OpenAI API: takes requests from the data plane, has them routed, counts the results.

The data plane (`kvatlas_native.Proxy`) reads requests, forwards them and streams the answers; it
tells what happens as events. For each request:

1. `Arrived`: `Api.handle` finds the route. If the data plane has read the prompt and asked for
   matches, the request is routed at once. Otherwise a task does it, because tokens and matches have
   to be waited for.
2. `Executor.forward` tells the data plane which engine to ask.
3. `Failed`, `FirstByte`: the executor chooses again, or counts the success.
4. `Ended`: everything that was counted for the request is released.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

import msgspec

from kvatlas_chassis import FatalError, HostPort
from kvatlas_frontend.api.body import ParsedBody, parse_body
from kvatlas_frontend.api.body import Route as PromptRoute
from kvatlas_frontend.api.errors import ApiError, RefusedError
from kvatlas_frontend.api.read import read_request
from kvatlas_frontend.api.reasons import Refusal
from kvatlas_frontend.api.responses import BEGIN_BYTES, Holders
from kvatlas_frontend.api.routes import Kind, Route, find_route, label_of
from kvatlas_frontend.fleet.models import ModelCatalog, ModelRoute
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.plane_work import PlaneWork
from kvatlas_frontend.proxy.executor import Call, Executor, no_worker_error
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.slots import ReadRequest, RoutingRequest
from kvatlas_frontend.routing.workflow import SingleDispatch
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_native import (
    Arrived,
    Ended,
    EngineTls,
    Failed,
    FirstByte,
    Proxy,
    ReadPrompt,
    Refused,
    SharedListener,
)

log = logging.getLogger(__name__)

_HEAD_BYTES_MAX: Final = 32 * 1024
_HEADERS_MAX: Final = 128
_JSON: Final = [("content-type", "application/json")]
_PROMPT_ROUTES: Final[dict[str, PromptRoute]] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
}
_INTERNAL_ERROR: Final = ApiError(
    500, "The router failed", kind="server_error", code="internal_error"
)


class Api:
    """Decides about the requests of one listening address, on one event loop."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        models: ModelCatalog,
        workflow: SingleDispatch,
        executor: Executor,
        metrics: FrontendMetrics,
        holders: Holders,
        now_s: Callable[[], float],
        plane: PlaneWork,
    ) -> None:
        self._fleet = fleet
        self._holders = holders
        self._models = models
        self._workflow = workflow
        self._executor = executor
        self._metrics = metrics
        self._now_s = now_s
        self._plane = plane
        self._calls: dict[int, Call] = {}

    def handle(self, event: Arrived | Failed | FirstByte | Ended | Refused) -> None:
        """Take one event of the data plane."""
        match event:
            case Arrived():
                call = self._calls[event.exchange.id] = Call(event.exchange)
                with self._answering_errors(call):
                    self._route(call, event)
            case FirstByte():
                self._first_byte(self._calls[event.id], event)
            case Ended():
                self._ended(self._calls.pop(event.id), event)
            case Failed():
                call = self._calls[event.id]
                with self._answering_errors(call):
                    self._executor.failed(call, event)
            case Refused():
                if event.code:
                    self._metrics.refused.labels(event.code).inc()
                self._count(event.path, event.status)

    def _route(self, call: Call, event: Arrived) -> None:
        exchange = call.exchange
        found = find_route(exchange.path)
        if found is None:
            raise RefusedError(Refusal.UNKNOWN_ROUTE, 404, "Unknown request URL")
        route, name = found
        if exchange.method not in route.methods:
            raise RefusedError(
                Refusal.BAD_METHOD,
                405,
                f"This URL takes {' or '.join(route.methods)}",
                headers=[("allow", ", ".join(route.methods))],
            )
        match route.kind:
            case Kind.MODELS:
                body = msgspec.json.encode({"object": "list", "data": self._models.listing()})
                exchange.answer(200, _JSON, body)
            case Kind.MODEL:
                entry = self._models.entry(unquote(name))
                if entry is None:
                    raise _unknown_model(unquote(name))
                exchange.answer(200, _JSON, msgspec.json.encode(entry))
            case Kind.HEALTH:
                if not self._fleet.is_any_available(self._now_s()):
                    raise no_worker_error(call)
                exchange.answer(200, [], b"")
            case Kind.COMPLETIONS | Kind.CHAT if event.prompt is not None:
                self._infer_read(call, event, event.prompt)
            case _:
                call.task = asyncio.create_task(self._infer(call, event, route, name))

    def _infer_read(self, call: Call, event: Arrived, prompt: ReadPrompt) -> None:
        """Route a request whose prompt the data plane has read."""
        path, exchange = _PROMPT_ROUTES[call.exchange.path], call.exchange
        body = ParsedBody(
            prompt.model,
            stream=prompt.stream,
            cache_salt=prompt.cache_salt,
            batch=prompt.batch,
            parse=lambda: parse_body(path, exchange.body),
        )
        self._metrics.count_prompt_read("native", "none")
        found = None if event.matches is None else self._plane.report(event.matches)
        read = ReadRequest(prompt, found, event.find_s)
        context = self._workflow.begin(self._request(call, body, read))
        if self._workflow.prepare_now(context):
            self._dispatch(call, event, context)
        else:
            call.task = asyncio.create_task(self._infer_rest(call, event, context))

    async def _infer_rest(self, call: Call, event: Arrived, context: RoutingContext) -> None:
        with self._answering_errors(call):
            await self._workflow.prepare(context)
            self._dispatch(call, event, context)

    async def _infer(self, call: Call, event: Arrived, route: Route, name: str) -> None:
        with self._answering_errors(call):
            if route.kind in (Kind.COMPLETIONS, Kind.CHAT):
                self._metrics.count_prompt_read("python", event.left or "off")
            parsed = read_request(route, name, call.exchange, self._models)
            context = self._workflow.begin(self._request(call, parsed, None))
            await self._workflow.prepare(context)
            self._dispatch(call, event, context)

    def _request(self, call: Call, body: ParsedBody, read: ReadRequest | None) -> RoutingRequest:
        if not len(self._fleet):
            raise no_worker_error(call)  # before any work on the prompt
        model = self._models.route(body.model)
        self._plane.know_adapters(self._models.adapters)
        if model is None:
            raise _unknown_model(body.model)
        opaque = body.opaque
        if opaque is not None and opaque.why is not None:
            self._metrics.prompts_unrendered.labels(opaque.why.value).inc()
        if body.is_stored:
            call.begin_bytes = BEGIN_BYTES
        only = None if body.follows is None else self._holder(body.follows, model)
        return RoutingRequest(body, model, only, call.exchange.header, read)

    def _dispatch(self, call: Call, event: Arrived, context: RoutingContext) -> None:
        """Choose a worker for a prepared request, and have it sent there."""
        call.context, call.plan = context, self._workflow.plan(context, set())
        self._metrics.routing_seconds["total"].observe(event.age_s)
        if call.plan is not None and call.plan.reason.is_fallback:
            self._metrics.fallbacks.labels(call.plan.reason.value).inc()
        self._executor.forward(call)

    def _holder(self, response_id: str, model: ModelRoute) -> str | None:
        """URL of the engine that has a response; None: only one serves the model, and may have it.

        Raises:
            RefusedError: 404, the response is unknown.
        """
        urls = {
            worker.record.engine_url
            for worker in self._fleet
            if model.rows is None or model.rows[worker.row]
        }
        found = self._holders.find(response_id)
        if found in urls:
            return found
        if len(urls) == 1:
            return None
        raise RefusedError(
            Refusal.UNKNOWN_RESPONSE, 404, f"Response with id '{response_id}' not found.",
            param="response_id",
        )  # fmt: skip

    def _first_byte(self, call: Call, event: FirstByte) -> None:
        self._executor.first_byte(call)
        if call.begin_bytes and call.plan is not None:
            self._holders.learn(event.begin, call.plan.worker.record.engine_url)

    def _ended(self, call: Call, event: Ended) -> None:
        if call.task is not None and not call.task.done():
            call.task.cancel()  # its client left while it was routed
        self._executor.ended(call, event)
        self._count(call.exchange.path, event.status)

    @contextmanager
    def _answering_errors(self, call: Call) -> Generator[None]:
        """Answer the client with the error that ends the block; a bug is a 500 and a log entry."""
        try:
            yield
        except ApiError as error:
            self._answer_error(call, error)
        except Exception:
            log.exception("a request failed in the router")
            self._answer_error(call, _INTERNAL_ERROR)

    def _answer_error(self, call: Call, error: ApiError) -> None:
        if isinstance(error, RefusedError):
            self._metrics.refused.labels(error.reason.value).inc()
        form = call.exchange.error_form
        headers = [*_JSON, *error.headers]
        call.exchange.answer(error.status_in(form), headers, error.body_in(form))

    def _count(self, path: str, status: int) -> None:
        self._metrics.count_request(label_of(path), status)


def _unknown_model(name: str | None) -> RefusedError:
    return RefusedError(
        Refusal.UNKNOWN_MODEL, 404, f"The model `{name}` does not exist", param="model"
    )


class ApiServer:
    """The data plane and the event loop that decides for it."""

    def __init__(self, proxy: Proxy, api: Api, *, grace_s: float) -> None:
        self._proxy = proxy
        self._api = api
        self._grace_s = grace_s
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(proxy.fileno(), self._take)
        self.address = HostPort(*proxy.address)

    @classmethod
    def start(
        cls,
        api: Api,
        plane: PlaneWork,
        settings: FrontendSettings,
        metrics: FrontendMetrics,
        *,
        tls: EngineTls,
        shared: SharedListener | None = None,
    ) -> "ApiServer":
        """Listen; with `shared`, on that socket.

        Raises:
            FatalError: the address cannot be used; the message names it.
        """
        listen = settings.listen
        try:
            proxy = Proxy(
                listen.host,
                listen.port,
                engine_tls=tls,
                shared=shared,
                head_bytes_max=_HEAD_BYTES_MAX,
                headers_max=_HEADERS_MAX,
                body_bytes_max=settings.request_bytes_max,
                answer_buffer_bytes_max=settings.response_buffer_bytes_max,
                head_timeout_s=settings.head_timeout_s,
                body_timeout_s=settings.body_timeout_s,
                idle_timeout_s=settings.idle_timeout_s,
                write_timeout_s=settings.write_timeout_s,
                connect_timeout_s=settings.connect_timeout_s,
                first_byte_timeout_s=settings.first_byte_timeout_s or None,
                between_bytes_timeout_s=settings.between_bytes_timeout_s or None,
                prompts=plane.reader,
                finder=plane.finder,
                matches_limit=plane.matches_limit,
                matches_deadline_s=settings.deadline_ms / 1e3,
            )
        except OSError as error:
            reason = str(error).partition(" (os error")[0]
            raise FatalError(f"cannot listen on --listen {listen}: {reason}") from None
        plane.steer(proxy.set_asking)
        metrics.in_flight.set_function(lambda: proxy.in_flight)
        return cls(proxy, api, grace_s=settings.grace_s)

    @property
    def in_flight(self) -> int:
        """Requests that have begun and not ended."""
        return self._proxy.in_flight

    async def close(self) -> None:
        """Stop listening; after the grace period, end the requests still in flight."""
        await asyncio.to_thread(self._proxy.close, self._grace_s)
        self._loop.remove_reader(self._proxy.fileno())
        self._take()

    def _take(self) -> None:
        for event in self._proxy.take():
            self._api.handle(event)
