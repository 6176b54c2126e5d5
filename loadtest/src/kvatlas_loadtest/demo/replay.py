"""Plays a plan, open loop: a request is sent when it is due, whether or not earlier ones are answered.

The time to the first token counts from the moment when a request was due. So a client or a router
that falls behind shows as latency, and not as a lower load.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from kvatlas_loadtest.demo.plan import PlannedRequest
from kvatlas_loadtest.sse import SseError, SseReader, cached_tokens

REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request.

    Attributes:
        error: None: the answer arrived completely, with the engine's usage.
        ttft_ms: time from when the request was due to its first streamed token.
        cached_tokens: the engine's own count of cached prompt tokens.
        worker: `worker_id/dp_rank` of the engine that answered.
        reason: why the router chose it.
    """

    error: str | None
    ttft_ms: float | None
    cached_tokens: int
    worker: str
    reason: str


Progress = Callable[[int], None]
"""Called after each request with the number of finished ones."""


async def replay(
    requests: Sequence[PlannedRequest], frontends: Sequence[str], *, progress: Progress
) -> list[Outcome]:
    """Send every request, round robin over the frontends (`host:port`), and wait for all answers.

    Returns:
        One outcome per request, in the order of the plan. A failed request is an outcome too.
    """
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=10)
    connector = aiohttp.TCPConnector(limit=0)
    finished = 0

    async def one(request: PlannedRequest, url: str, due: float) -> Outcome:
        nonlocal finished
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        outcome = await _send(session, request, url, due)
        finished += 1
        progress(finished)
        return outcome

    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        start = time.monotonic() + 0.1
        tasks = [
            group.create_task(
                one(
                    request,
                    f"http://{frontends[i % len(frontends)]}/v1/completions",
                    start + request.at_s,
                )
            )
            for i, request in enumerate(requests)
        ]
    return [task.result() for task in tasks]


async def _send(
    session: aiohttp.ClientSession, request: PlannedRequest, url: str, due: float
) -> Outcome:
    ttft_ms: float | None = None
    cached: int | None = None
    error: str | None = None
    worker = reason = ""
    events = SseReader()
    try:
        async with session.post(
            url, data=request.body, headers={"Content-Type": "application/json"}
        ) as response:
            worker = response.headers.get("x-kvatlas-worker", "")
            reason = response.headers.get("x-kvatlas-reason", "")
            if response.status != 200:  # noqa: PLR2004
                error = f"status {response.status}: {(await response.text())[:200]}"
            else:
                async for data in response.content.iter_any():
                    for event in events.feed(data):
                        if "error" in event:
                            error = f"error event: {event['error']}"
                        elif ttft_ms is None and event.get("choices"):
                            ttft_ms = (time.monotonic() - due) * 1_000
                        found = cached_tokens(event)
                        cached = found if found is not None else cached
    except (aiohttp.ClientError, TimeoutError, SseError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    if error is None and (not events.done or cached is None):
        error = "the answer ended early" if not events.done else "the answer tells no usage"
    return Outcome(error, ttft_ms, cached or 0, worker, reason)
