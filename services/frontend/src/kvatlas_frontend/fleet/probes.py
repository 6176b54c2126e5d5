"""This frontend's own look at engines nobody vouches for.

A stale worker has no publisher to speak for it, and one that failed requests is left alone by
routing. Both are asked for `/health` now and then, so that the dead ones stay out and the living
come back without costing a request.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from kvatlas_frontend.fleet.table import Fleet, Member
from kvatlas_frontend.fleet.worker import WorkerState
from kvatlas_frontend.metrics import FrontendMetrics

_AT_ONCE: Final = 16
_TIMEOUT = aiohttp.ClientTimeout(total=1.0)


async def probe_for_ever(
    session: aiohttp.ClientSession,
    fleet: Fleet,
    metrics: FrontendMetrics,
    *,
    interval_s: float,
    now_s: Callable[[], float],
) -> None:
    """Probe every `interval_s`, a bounded number at once."""
    while True:
        await asyncio.sleep(interval_s)
        await probe_once(session, fleet, metrics, now_s)


async def probe_once(
    session: aiohttp.ClientSession,
    fleet: Fleet,
    metrics: FrontendMetrics,
    now_s: Callable[[], float],
) -> None:
    """Probe each stale or failing worker once."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(member: Member) -> None:
        async with gate:
            if await _answers(session, member):
                fleet.answered(member)
            else:
                metrics.probes_failed.inc()
                fleet.failed(member, now_s())

    doubtful = [
        member
        for member in fleet
        if member.urls and (member.record.state is WorkerState.STALE or member.breaker.has_failed)
    ]
    await asyncio.gather(*(one(member) for member in doubtful))


async def _answers(session: aiohttp.ClientSession, member: Member) -> bool:
    """Any status counts: an engine that says 500 is there, and requests will tell."""
    try:
        async with session.get(
            member.urls["/health"], timeout=_TIMEOUT, allow_redirects=False
        ) as response:
            return response.status > 0
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
