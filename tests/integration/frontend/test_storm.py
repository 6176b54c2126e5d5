"""A seeded storm: engines die, refuse and stall, clients leave; afterwards nothing is left over."""

import asyncio
import random

import aiohttp
import pytest
from aiohttp import web

from tests.integration.frontend.stage import MODEL, Stage, until

REQUESTS = 120
EVENTS_WANTED_MAX = 15
STALL = 3
EVENT = b'data: {"choices": [{"text": "word"}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Moody:
    """An engine that does something else each time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        mood = self._rng.randrange(6)
        assert request.transport is not None
        if mood == 0:
            request.transport.abort()
            return web.Response()
        if mood == 1:
            return web.Response(status=500)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        # A stalled stream has said enough by then for every client to leave.
        for _ in range(EVENTS_WANTED_MAX if mood == STALL else self._rng.randrange(1, 20)):
            await response.write(EVENT)
            await asyncio.sleep(0)
        if mood == 2:
            request.transport.abort()
        elif mood == STALL:
            await asyncio.Event().wait()
        else:
            await response.write(DONE)
        return response


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_left_over(stage: Stage, seed: int) -> None:
    rng = random.Random(seed)
    for worker in range(4):
        await stage.engine(worker, behaviour=Moody(random.Random(rng.random())))
    await stage.start()
    await stage.announce()
    outcomes: list[str] = []

    async def one(number: int) -> None:
        body = {"model": MODEL, "prompt": f"prompt {number % 7} " * 5, "stream": True}
        events = rng.randint(1, EVENTS_WANTED_MAX)
        try:
            async with stage.client.post("/v1/completions", json=body) as response:
                if response.status != 200:
                    assert (await response.json())["error"]["code"] == "engines_failed"
                    outcomes.append("failed")
                    return
                seen = b""
                while seen.count(EVENT) < events and not seen.endswith(DONE):
                    seen += await response.content.readany()
                outcomes.append("ended" if seen.endswith(DONE) else "left")
        except aiohttp.ClientError as error:
            outcomes.append(type(error).__name__)

    await asyncio.gather(*(one(number) for number in range(REQUESTS)))
    await until(stage.nothing_in_flight)
    assert len(outcomes) == REQUESTS
    assert set(outcomes) <= {"ended", "left", "failed"}
    assert {"ended", "left"} <= set(outcomes)
    assert stage.metric("retries_total") > 0
    assert stage.metric("streams_broken_total") > 0
    statuses = {
        sample.labels["status"]: sample.value
        for family in stage.frontend.metrics.requests.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert set(statuses) <= {"200", "499", "502"}
    assert sum(statuses.values()) == REQUESTS
