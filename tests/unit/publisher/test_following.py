"""The task that follows an engine: begun anew, and given up meanwhile."""

import asyncio

from kvatlas_chassis import TaskSet
from kvatlas_engines.endpoint import Endpoint
from kvatlas_engines.stream import StreamTiming
from kvatlas_publisher.following import Following
from kvatlas_publisher.settings import EngineSpec

SPEC = EngineSpec(
    engine="vllm",
    events=Endpoint.parse("tcp://127.0.0.1:1"),
    replay=None,
    engine_url=None,
    advertised_url="",
    worker_id=7,
    dp_rank=1,
    model="m",
    block_size=1,
    cell="c",
    logs=(),
    role="",
    labels={},
)


async def test_who_is_cancelled_while_the_old_one_ends_ends_too() -> None:
    tasks = TaskSet()
    following = Following(SPEC, StreamTiming(), lambda _: None, tasks, None)
    following.start()
    await asyncio.sleep(0.01)

    async def beat() -> None:
        await following.anew()
        await asyncio.Event().wait()

    beating = tasks.start(beat(), name="beat")
    await asyncio.sleep(0)  # it waits for the follower to end
    async with asyncio.timeout(5.0):
        await tasks.close()
    assert beating.cancelled()
