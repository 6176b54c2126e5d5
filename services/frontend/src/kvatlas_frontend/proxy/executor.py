"""The executor: has a request sent to workers until one answers.

A failure before the answer's first byte costs the client nothing: the request goes to another
engine, to each at most once. After the first byte it is never sent again: the data plane ends a
stream with an error event and `[DONE]`, and makes an unstreamed answer a 502.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kvatlas_frontend.api.errors import ApiError, RefusedError
from kvatlas_frontend.api.reasons import Refusal
from kvatlas_frontend.fleet.circuit_breaker import Trouble
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.proxy.retry_budget import RetryBudget
from kvatlas_frontend.proxy.usage import Expected, UsageCheck
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.slots import REQUEST, TOKENS
from kvatlas_frontend.routing.workflow import RoutingPlan, SingleDispatch
from kvatlas_native import Ended, Exchange, Failed

log = logging.getLogger(__name__)

WORKER_HEADER: Final = "x-kvatlas-worker"
DEPTH_HEADER: Final = "x-kvatlas-depth"
REASON_HEADER: Final = "x-kvatlas-reason"
RANK_HEADER: Final = "x-data-parallel-rank"  # honoured by vLLM and SGLang

_BAD_GATEWAY: Final = 502
_UNAVAILABLE: Final = 503


@dataclass(slots=True)
class Call:
    """A client's request, and how far it is."""

    exchange: Exchange
    task: asyncio.Task[None] | None = None  # routes it
    context: RoutingContext | None = None  # set with the first plan
    plan: RoutingPlan | None = None  # of the current attempt
    tried: set[str] = field(default_factory=set[str])  # URLs of the engines that failed
    begin_bytes: int = 0  # how much of the answer's begin the first byte's event shall have
    busy: list[str | None] = field(default_factory=list[str | None])  # Retry-After of their 503s


class Executor:
    """Executes routing plans. All requests of one event loop share it; it keeps no state."""

    def __init__(
        self,
        *,
        workflow: SingleDispatch,
        fleet: Fleet,
        metrics: FrontendMetrics,
        usage: UsageCheck,
        attempts_max: int,
        now_s: Callable[[], float],
    ) -> None:
        self._workflow = workflow
        self._fleet = fleet
        self._metrics = metrics
        self._usage = usage
        self._attempts_max = attempts_max
        self._now_s = now_s
        self._budget = RetryBudget(now_s())

    def forward(self, call: Call) -> None:
        """Send the request as its plan says. The plan's ticket is released when the attempt ends.

        Raises:
            ApiError: there is no plan (503: no worker is available; 502: all that were tried failed).
        """
        plan = call.plan
        if plan is None:
            raise no_worker_error(call)
        if not call.tried:
            self._budget.earn()
        self._fleet.sent(plan.worker, self._now_s())
        engine = plan.worker.engine
        exchange = call.exchange
        exchange.forward(
            engine.host,
            engine.port,
            engine.base_path + exchange.path + ("?" + exchange.query if exchange.query else ""),
            [(RANK_HEADER, plan.worker.rank)],
            [
                (WORKER_HEADER, plan.worker.name),
                (DEPTH_HEADER, str(plan.depth)),
                (REASON_HEADER, plan.reason.value),
            ],
            is_tls=engine.is_tls,
            begin_bytes=call.begin_bytes,
        )

    def failed(self, call: Call, event: Failed) -> None:
        """Count a failed attempt and try another engine.

        Raises:
            ApiError: none is left.
        """
        plan = call.plan
        assert plan is not None  # noqa: S101 - only an attempt fails
        assert call.context is not None  # noqa: S101 - set with the plan
        worker = plan.worker
        self._metrics.attempts_failed.labels(event.kind).inc()
        log.warning("worker %s: %s (%s)", worker.name, event.kind, event.detail)
        trouble = Trouble.UNREACHABLE if event.kind == "connect" else Trouble.FAILING
        self._fleet.failed(worker, trouble, self._now_s())
        self._release(call)
        call.tried.add(worker.record.engine_url)
        if event.status == _UNAVAILABLE:
            call.busy.append(event.retry_after)
        if len(call.tried) < self._attempts_max and self._budget.spend(self._now_s()):
            call.plan = self._workflow.plan(call.context, call.tried)
        if call.plan is not None:
            self._metrics.retries.inc()
        self.forward(call)

    def first_byte(self, call: Call) -> None:
        """Count the first byte of the engine's answer."""
        plan = call.plan
        assert plan is not None  # noqa: S101 - an answer comes from an attempt
        self._fleet.answered(plan.worker)
        plan.ticket.first_byte()
        self._metrics.decisions.labels(plan.reason.value).inc()
        self._metrics.first_byte.observe(call.exchange.age_s)

    def ended(self, call: Call, event: Ended) -> None:
        """Release what was counted, and compare the engine's usage with what routing expected."""
        plan = call.plan
        if plan is None:
            return
        self._release(call)
        if event.broken is not None:
            self._metrics.streams_broken.inc()
            log.warning(
                "worker %s died in the middle of an answer: %s", plan.worker.name, event.broken
            )
        elif event.tail and call.context is not None:
            tokens = call.context.get(TOKENS)
            if tokens is not None and tokens.whole and not call.context[REQUEST].body.batch:
                expected = Expected(len(tokens.ids), plan.depth)
                self._usage.compare(event.tail, expected, self._now_s())

    def _release(self, call: Call) -> None:
        if call.plan is not None:
            self._fleet.release(call.plan.ticket)
            call.plan = None


def no_worker_error(call: Call) -> ApiError:
    """The error for a client when no worker is left to try."""
    tried = len(call.tried)
    if not tried:
        return RefusedError(
            Refusal.NO_WORKER, _UNAVAILABLE, "No inference worker is available at the moment"
        )
    if len(call.busy) == tried:
        waits = [wait for wait in call.busy if wait is not None]
        return ApiError(
            _UNAVAILABLE,
            "All inference workers are busy",
            kind="service_unavailable_error",
            code="engines_busy",
            headers=[("retry-after", min(waits, key=_seconds))] if waits else [],
        )
    noun = "worker" if tried == 1 else "workers"
    return ApiError(
        _BAD_GATEWAY,
        f"The request failed on {tried} inference {noun}",
        kind="server_error",
        code="engines_failed",
    )


def _seconds(retry_after: str) -> float:
    """Seconds of a `Retry-After`; a date counts as a minute, since engines send seconds."""
    return float(retry_after) if retry_after.isdecimal() else 60.0
