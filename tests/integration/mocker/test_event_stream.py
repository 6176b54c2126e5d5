"""The events of a real mock engine process, followed with raw ZMQ sockets, and its faults."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from kvatlas_testing.mock_engine import EngineProcess, running_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one engine serves the module

END = b"\xff" * 8


@dataclass
class Followed:
    """The cache as a reader of the events knows it."""

    blocks: dict[int, tuple[list[int], int | None]] = field(
        default_factory=dict[int, tuple[list[int], int | None]]
    )
    removals: int = 0

    def apply(self, payload: bytes) -> None:
        _, events, _ = msgspec.msgpack.decode(payload)
        for event in events:
            match event["type"]:
                case "BlockStored":
                    self._store(event)
                case "BlockRemoved":
                    for block_hash in event["block_hashes"]:
                        del self.blocks[block_hash]
                        self.removals += 1
                case "AllBlocksCleared":
                    self.blocks.clear()
                case other:
                    pytest.fail(f"unknown event {other}")

    def _store(self, event: dict[str, Any]) -> None:
        size, parent = event["block_size"], event["parent_block_hash"]
        for index, block_hash in enumerate(event["block_hashes"]):
            tokens = event["token_ids"][index * size : (index + 1) * size]
            self.blocks[block_hash] = (tokens, parent)
            parent = block_hash


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


@pytest_asyncio.fixture(loop_scope="module")
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process() -> AsyncIterator[EngineProcess]:
    flags = ("--model", "m", "--blocks", "48", "--block-size", "4", "--speedup", "inf")
    async with running_engine(*flags) as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def engine(http: aiohttp.ClientSession, process: EngineProcess) -> EngineProcess:
    """The module's engine, empty: it comes back as if its process had been killed."""
    async with http.post(f"{process.url}/debug/fault", json={"restart": True}) as response:
        assert (response.status, await response.json()) == (200, {})
    return process


async def post(http: aiohttp.ClientSession, url: str, body: object) -> int:
    async with http.post(url, json=body) as response:
        await response.read()
        return response.status


async def fault(http: aiohttp.ClientSession, engine: EngineProcess, **order: object) -> None:
    assert await post(http, f"{engine.url}/debug/fault", order) == 200


async def complete(
    http: aiohttp.ClientSession, engine: EngineProcess, prompt: list[int], **extra: object
) -> int:
    body = {"prompt": prompt, "max_tokens": 6, **extra}
    return await post(http, f"{engine.url}/v1/completions", body)


async def truth(http: aiohttp.ClientSession, engine: EngineProcess) -> dict[str, Any]:
    async with http.get(f"{engine.url}/debug/cache") as response:
        return await response.json()


def held(answer: dict[str, Any]) -> dict[int, tuple[list[int], int | None]]:
    assert set(answer) == {"epoch", "blocks"}
    assert set(answer["blocks"]) == {"device"}
    return {h: (tokens, parent) for h, tokens, parent in answer["blocks"]["device"]}


async def subscribe(
    context: zmq.asyncio.Context, http: aiohttp.ClientSession, engine: EngineProcess
) -> tuple[zmq.asyncio.Socket, int]:
    """A subscriber that has provably joined, and the seq of the last message that it has read."""
    socket = context.socket(zmq.SUB)
    socket.connect(engine.events)
    socket.subscribe(b"kv-events")
    while not await socket.poll(timeout=20):
        await post(http, f"{engine.url}/reset_prefix_cache", {})
    seq = -1
    while await socket.poll(timeout=100):
        _, raw, _ = await socket.recv_multipart()
        seq = int.from_bytes(raw, "big")
    return socket, seq


async def replay(
    context: zmq.asyncio.Context, engine: EngineProcess, start: int, *, rank: int = 0
) -> list[tuple[int, bytes]]:
    host, _, port = engine.replay.rpartition(":")
    socket = context.socket(zmq.DEALER)
    socket.connect(f"{host}:{int(port) + rank}")
    await socket.send_multipart([b"", start.to_bytes(8, "big")])  # pyright: ignore[reportUnknownMemberType] - untyped in pyzmq
    messages: list[tuple[int, bytes]] = []
    while True:
        delimiter, topic, seq, payload = await socket.recv_multipart()
        assert (delimiter, topic) == (b"", b"kv-events")
        if seq == END:
            assert payload == b""
            socket.close(linger=0)
            return messages
        messages.append((int.from_bytes(seq, "big"), payload))


def prompts(count: int, *, seed: int) -> list[list[int]]:
    """Prompts that share prefixes and together exceed the cache."""
    dice = random.Random(seed)
    heads = [[dice.randrange(70_000) for _ in range(20)] for _ in range(4)]
    return [
        dice.choice(heads)[: dice.randrange(1, 21)]
        + [dice.randrange(70_000) for _ in range(dice.randrange(1, 30))]
        for _ in range(count)
    ]


async def test_the_events_replayed_are_what_the_engine_holds(
    context: zmq.asyncio.Context, http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    socket, last = await subscribe(context, http, engine)
    statuses = await asyncio.gather(*(complete(http, engine, p) for p in prompts(60, seed=1)))
    assert set(statuses) == {200}
    expected = held(await truth(http, engine))
    followed = Followed()
    while followed.blocks != expected:
        topic, seq, payload = await socket.recv_multipart()
        assert topic == b"kv-events"
        assert int.from_bytes(seq, "big") == last + 1
        last += 1
        followed.apply(payload)
    assert followed.removals > 0
    assert all(parent in expected for _, parent in expected.values() if parent is not None)
    again = Followed()
    for _, payload in await replay(context, engine, 0):
        again.apply(payload)
    assert again.blocks == expected


async def test_replay_starts_where_it_is_asked_to(
    context: zmq.asyncio.Context, http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    for prompt in prompts(5, seed=2):
        await complete(http, engine, prompt)
    messages = await replay(context, engine, 0)
    assert [seq for seq, _ in messages] == list(range(len(messages)))
    assert await replay(context, engine, 3) == messages[3:]
    assert await replay(context, engine, len(messages)) == []


async def test_a_dropped_message_is_in_replay_and_a_hole_is_nowhere(
    context: zmq.asyncio.Context, http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    socket, last = await subscribe(context, http, engine)
    for order in ({"drop_events": 1}, {"hole_events": 1}, {}):
        await fault(http, engine, **order)
        await post(http, f"{engine.url}/reset_prefix_cache", {})
    _, seq, _ = await socket.recv_multipart()
    assert int.from_bytes(seq, "big") == last + 3
    replayed = [seq for seq, _ in await replay(context, engine, last + 1)]
    assert replayed == [last + 1, last + 3]


async def test_a_restarted_engine_is_empty_and_counts_from_0_at_the_same_addresses(
    context: zmq.asyncio.Context, http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    socket, _ = await subscribe(context, http, engine)
    for prompt in prompts(5, seed=3):
        await complete(http, engine, prompt)
    before = await truth(http, engine)
    assert held(before)
    await fault(http, engine, restart=True)
    after = await truth(http, engine)
    assert held(after) == {}
    assert after["epoch"] > before["epoch"]
    assert await replay(context, engine, 0) == []
    assert await complete(http, engine, list(range(20))) == 200
    messages = await replay(context, engine, 0)
    assert [seq for seq, _ in messages] == list(range(len(messages)))
    # A subscriber that stayed is connected again, by itself, and sees the new numbers.
    seen = set[tuple[bytes, bytes]]()
    while not seen & {(seq.to_bytes(8, "big"), payload) for seq, payload in messages}:
        await post(http, f"{engine.url}/reset_prefix_cache", {})
        messages = await replay(context, engine, 0)
        while await socket.poll(timeout=20):
            _, seq, payload = await socket.recv_multipart()
            seen.add((seq, payload))


async def test_each_rank_has_a_stream_of_its_own(
    context: zmq.asyncio.Context, http: aiohttp.ClientSession
) -> None:
    async with running_engine("--model", "m", "--dp-ranks", "3", "--speedup", "inf") as engine:
        headers = {"X-data-parallel-rank": "2"}
        body = {"prompt": list(range(40)), "max_tokens": 1}
        url = f"{engine.url}/v1/completions"
        async with http.post(url, json=body, headers=headers) as response:
            assert response.status == 200
        assert await replay(context, engine, 0, rank=1) == []
        ((seq, payload),) = await replay(context, engine, 0, rank=2)
        _, (event,), rank = msgspec.msgpack.decode(payload)
        assert (seq, rank, event["type"]) == (0, 2, "BlockStored")
        assert event["token_ids"] == list(range(32))


async def test_a_restart_cuts_open_requests_off(http: aiohttp.ClientSession) -> None:
    async with running_engine("--model", "m", "--step-ms", "3600000") as engine:
        hung = asyncio.create_task(complete(http, engine, [1, 2, 3]))
        async with http.get(f"{engine.url}/health") as response:
            assert response.status == 200
        while b'running{engine="0",model_name="m"} 1.0' not in await page(http, engine):
            pass
        await fault(http, engine, restart=True)
        with pytest.raises(aiohttp.ClientError):
            await hung


async def page(http: aiohttp.ClientSession, engine: EngineProcess) -> bytes:
    async with http.get(f"{engine.url}/metrics") as response:
        return await response.read()


async def test_requests_fail_as_they_are_told_to(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    await fault(http, engine, error_500=2)
    assert [await complete(http, engine, [1, 2]) for _ in range(3)] == [500, 500, 200]
    await fault(http, engine, die_before_first_byte=1)
    with pytest.raises(aiohttp.ClientError):
        await complete(http, engine, [1, 2])
    assert await complete(http, engine, [1, 2]) == 200
    assert await post(http, f"{engine.url}/debug/fault", {"eror_500": 1}) == 400


async def test_an_engine_dies_in_the_middle_of_a_stream(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    await fault(http, engine, die_mid_stream=1, after_tokens=3)
    received: list[bytes] = []
    body = {"prompt": [1, 2], "max_tokens": 10, "stream": True}

    async def read() -> None:
        async with http.post(f"{engine.url}/v1/completions", json=body) as response:
            assert response.status == 200
            async for line in response.content:
                received.append(line)  # noqa: PERF401 - what came before the end must be kept

    with pytest.raises(aiohttp.ClientPayloadError):
        await read()
    events = b"".join(received).decode().split("\n\n")
    assert [json.loads(e.removeprefix("data: "))["object"] for e in events if e] == [
        "text_completion"
    ] * 3


async def test_an_engine_hangs_until_the_client_gives_up(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    await fault(http, engine, hang=1)
    hung = asyncio.create_task(complete(http, engine, [1, 2]))
    async with http.get(f"{engine.url}/debug/fault") as response:
        left = await response.json()
    while left != {}:
        async with http.get(f"{engine.url}/debug/fault") as response:
            left = await response.json()
    assert await complete(http, engine, [1, 2]) == 200
    assert not hung.done()
    hung.cancel()
    await asyncio.gather(hung, return_exceptions=True)
