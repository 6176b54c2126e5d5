"""The executor: offers a request to workers until one answers, and streams the answer back.

Before the first byte of an answer a failure costs the client nothing: the request goes to another
worker, to each at most once. From the first byte on it is never sent again: a stream ends with an
error event and `[DONE]`, an answer that was held back becomes a 502.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict

from kvatlas_frontend.api.errors import ApiError, RefusedError, sse_error
from kvatlas_frontend.api.reasons import Refusal
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import WorkerKey
from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.proxy.engine import Answer, AttemptError, Failure, attempt, read_error
from kvatlas_frontend.proxy.headers import (
    DEPTH_HEADER,
    REASON_HEADER,
    WORKER_HEADER,
    downstream_headers,
    upstream_headers,
)
from kvatlas_frontend.proxy.usage import TAIL_BYTES, Assumed, UsageCheck
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.slots import REQUEST, TOKENS
from kvatlas_frontend.routing.workflow import RoutingPlan, SingleDispatch

log = logging.getLogger(__name__)

_BAD_GATEWAY: Final = 502
_UNAVAILABLE: Final = 503
_ERROR: Final = 400
_BROKEN: Final = "The inference engine failed while it was answering"


@dataclass(frozen=True, slots=True)
class Call:
    """A client's request, to be carried out."""

    request: web.BaseRequest
    path: str  # of the engine's API
    body: bytes
    arrived_s: float


class Executor:
    """Shared by all requests of one event loop; owns nothing but what it is given."""

    def __init__(
        self,
        *,
        session: aiohttp.ClientSession,
        workflow: SingleDispatch,
        fleet: Fleet,
        metrics: FrontendMetrics,
        usage: UsageCheck,
        attempts_max: int,
        buffer_bytes_max: int,
        now_s: Callable[[], float],
    ) -> None:
        self._session = session
        self._workflow = workflow
        self._fleet = fleet
        self._metrics = metrics
        self._usage = usage
        self._attempts_max = attempts_max
        self._buffer_bytes_max = buffer_bytes_max
        self._now_s = now_s

    async def execute(
        self, call: Call, context: RoutingContext, plan: RoutingPlan | None
    ) -> web.StreamResponse:
        """Answer the client, by `plan` at first; every plan's ticket is released here.

        Raises:
            ApiError: no worker answered (503 where none is there, 502 where all failed), or one
                died while its answer was held back (502).
        """
        tried: frozenset[WorkerKey] = frozenset()
        while plan is not None:
            try:
                answer = await self._attempt(call, plan)
                if answer is not None:
                    try:
                        return await self._forward(call, plan, answer, context)
                    finally:
                        answer.close()
            finally:
                self._fleet.release(plan.ticket)
            tried |= {plan.member.key}
            more = len(tried) < self._attempts_max
            plan = self._workflow.plan(context, tried) if more else None
            if plan is not None:
                self._metrics.retries.inc()
        raise nobody_answered(len(tried))

    async def _attempt(self, call: Call, plan: RoutingPlan) -> Answer | None:
        member = plan.member
        headers = upstream_headers(call.request.headers, member.rank)
        try:
            answer = await attempt(self._session, member.urls[call.path], headers, call.body)
        except AttemptError as error:
            self._metrics.attempts_failed.labels(error.failure.value).inc()
            log.warning("worker %s: %s (%s)", member.name, error.failure.value, error)
            if error.failure is Failure.CONNECT:
                self._fleet.failed(member, self._now_s())
            return None
        self._fleet.answered(member)
        plan.ticket.first_byte()
        self._metrics.first_byte.observe(self._now_s() - call.arrived_s)
        return answer

    async def _forward(
        self, call: Call, plan: RoutingPlan, answer: Answer, context: RoutingContext
    ) -> web.StreamResponse:
        self._metrics.decisions.labels(plan.reason.value).inc()
        headers = downstream_headers(answer.headers)
        headers[WORKER_HEADER] = plan.member.name
        headers[DEPTH_HEADER] = str(plan.depth)
        headers[REASON_HEADER] = plan.reason.value
        if answer.status >= _ERROR:
            return await self._refused_by_engine(call, plan, answer, headers)
        response = web.StreamResponse(status=answer.status, headers=headers)
        if answer.is_stream:
            tail = await self._stream(call, answer, response)
        else:
            whole = await self._held_back(answer)
            if whole is not None:
                self._compare(whole[-TAIL_BYTES:], plan, context)
                return web.Response(status=answer.status, headers=headers, body=whole)
            tail = await self._stream(call, answer, response)
        if tail is not None:
            self._compare(tail, plan, context)
        return response

    async def _refused_by_engine(
        self, call: Call, plan: RoutingPlan, answer: Answer, headers: CIMultiDict[str]
    ) -> web.StreamResponse:
        body = await read_error(answer, plan.member.urls[call.path])
        if body is None:
            headers["Content-Type"] = "application/json"
            headers.pop("Content-Encoding", None)
            body = ApiError(
                answer.status,
                "The inference engine refused the request",
                kind="invalid_request_error",
                code="engine_refused",
            ).body()
        return web.Response(status=answer.status, headers=headers, body=body)

    async def _held_back(self, answer: Answer) -> bytes | None:
        """The whole body of an unstreamed answer; None, with `first` so far, if it is too large.

        Raises:
            ApiError: 502, the engine died; nothing has been sent to the client yet.
        """
        parts = [answer.first]
        size = len(answer.first)
        try:
            while size <= self._buffer_bytes_max:
                chunk = await answer.content.readany()
                if not chunk:
                    whole = b"".join(parts)
                    if not answer.ends_by_itself:
                        msgspec.json.decode(whole)
                    return whole
                parts.append(chunk)
                size += len(chunk)
        except (aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
            self._metrics.streams_broken.inc()
            log.warning("an engine died in the middle of an answer: %s", error)
            raise ApiError(_BAD_GATEWAY, _BROKEN, kind="server_error", code="engine_died") from None
        answer.first = b"".join(parts)
        return None

    async def _stream(
        self, call: Call, answer: Answer, response: web.StreamResponse
    ) -> bytes | None:
        """Send the answer on as it comes; returns its last bytes, None if it broke."""
        await response.prepare(call.request)
        write, read = response.write, answer.content.readany
        before = last = b""
        chunk = answer.first
        while chunk:
            await write(chunk)
            before, last = last, chunk
            try:
                chunk = await read()
            except (aiohttp.ClientError, OSError) as error:
                await self._break_off(call, response, answer, last, error)
                return None
        tail = (before + last)[-TAIL_BYTES:]
        if answer.is_stream and not answer.ends_by_itself and b"[DONE]" not in tail:
            await self._break_off(call, response, answer, last, _cut_short())
            return None
        await response.write_eof()
        return tail

    async def _break_off(
        self,
        call: Call,
        response: web.StreamResponse,
        answer: Answer,
        last: bytes,
        error: Exception,
    ) -> None:
        """The engine died after its first byte: say so where the protocol has a way to."""
        self._metrics.streams_broken.inc()
        log.warning("an engine died in the middle of a stream: %s", error)
        if not answer.is_stream:
            # No way to say it in a body of JSON: a connection that ends early is at least no lie.
            if call.request.transport is not None:
                call.request.transport.abort()
            return
        # An event that was cut short is ended first, so that the error is an event of its own.
        start = b"" if last.endswith(b"\n\n") else b"\n\n"
        await response.write(start + sse_error(_BROKEN, kind="server_error", code="engine_died"))
        await response.write_eof()

    def _compare(self, tail: bytes, plan: RoutingPlan, context: RoutingContext) -> None:
        tokens = context.get(TOKENS)
        if tokens is None or not tokens.whole or context[REQUEST].body.batch:
            return
        self._usage.compare(tail, Assumed(len(tokens.ids), plan.depth), self._now_s())


def _cut_short() -> aiohttp.ClientPayloadError:
    return aiohttp.ClientPayloadError("the connection was closed before [DONE]")


def nobody_answered(tried: int) -> ApiError:
    """What a client is told when no worker is left."""
    if not tried:
        return RefusedError(
            Refusal.NO_WORKER, _UNAVAILABLE, "No inference worker is available at the moment"
        )
    noun = "worker" if tried == 1 else "workers"
    return ApiError(
        _BAD_GATEWAY,
        f"The request failed on {tried} inference {noun}",
        kind="server_error",
        code="engines_failed",
    )
