"""Prompts that the data plane reads are routed as those that Python reads."""

import asyncio
import datetime as dt
import io
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from kvatlas_frontend.tokens.chat_template import ChatTemplate
from kvatlas_frontend.tokens.encoder import FastEncoder
from tests.integration.frontend.stage import MODEL, Stage, until
from tests.integration.frontend.test_process import BLOCK_SIZE, Indexer, frontend
from tests.integration.frontend.test_process import engine as engine  # noqa: PLC0414 - a fixture

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ extra }}"
)
USER = {"role": "user", "content": " Grüße aus Köln, a text of several blocks 🙂 "}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
ADAPTER = {"id": "adapter", "object": "model", "parent": MODEL}
BODIES: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "text": ("completions", {"prompt": "A text of several blocks."}, "native"),
    "texts": ("completions", {"prompt": ["A text of several blocks.", "b"]}, "native"),
    "ids": ("completions", {"prompt": list(range(30))}, "native"),
    "adapter": ("completions", {"prompt": list(range(30)), "model": "adapter"}, "native"),
    "salt": ("completions", {"prompt": list(range(30)), "cache_salt": "s"}, "native"),
    "cut": ("completions", {"prompt": list(range(30)), "truncate_prompt_tokens": 9}, "native"),
    "short": ("completions", {"prompt": [1]}, "native"),
    "chat": ("chat/completions", {"messages": [USER]}, "native"),
    "tools": ("chat/completions", {"messages": [USER], "tools": [{"a": "ü"}]}, "native"),
    "image": (
        "chat/completions",
        {"messages": [USER, {"role": "user", "content": [USER, "x", IMAGE]}]},
        "native",
    ),
    "long float": (
        "chat/completions",
        {"messages": [USER], "chat_template_kwargs": {"extra": 1e20}},
        "python",
    ),
    "embeddings": ("completions", {"prompt_embeds": "AAAA"}, "python"),
    "bad field": ("completions", {"prompt": [1, "a"]}, "python"),
    "no prompt": ("chat/completions", {"messages": []}, "python"),
    "bad content": ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, "python"),
    "own template": ("chat/completions", {"messages": [USER], "chat_template": "x"}, "python"),
    "unknown model": ("completions", {"prompt": "a", "model": "another"}, "native"),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> FastEncoder:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        initial_alphabet=alphabet, special_tokens=["</>"], show_progress=False
    )
    tokenizer.train_from_iterator([], trainer)
    file = tmp_path_factory.mktemp("model") / "tokenizer.json"
    tokenizer.save(str(file))
    return FastEncoder(Path(file))


def template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE, {}, now=lambda: dt.datetime(2026, 11, 21, tzinfo=dt.UTC))


def natively(stage: Stage) -> float:
    return stage.metric("prompts_read_total", by="native", reason="none")


async def start(stage: Stage, encoder: FastEncoder, **settings: Any) -> None:  # noqa: ANN401 - any setting
    await stage.engine(1, models=[{"id": MODEL, "object": "model"}, ADAPTER])
    await stage.start(encoder=encoder, template=template(), **settings)
    await stage.announce()
    stage.indexers.matches = [(1, 0, 2)]


async def outcome(stage: Stage, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    async with stage.client.post(f"/v1/{path}", data=body) as response:
        shown = {
            name.lower(): value
            for name, value in response.headers.items()
            if name.lower().startswith("x-kvatlas")
        }
        return response.status, shown, await response.read()


@pytest.mark.parametrize("name", BODIES)
async def test_both_ways_route_alike(stage: Stage, encoder: FastEncoder, name: str) -> None:
    path, fields, by = BODIES[name]
    body = json.dumps(fields).encode()
    async with AsyncExitStack() as stack:
        python = Stage(stack)
        await start(stage, encoder)
        await start(python, encoder, native_prompts=False)
        for _ in range(2):  # the second time, the data plane knows the adapter's name
            ours, theirs = await outcome(stage, path, body), await outcome(python, path, body)
            assert ours == theirs
            asked = [
                [hashes.tolist() for hashes in each.indexers.asked] for each in (stage, python)
            ]
            assert asked[0] == asked[1]
        assert natively(stage) == (2 if by == "native" else 0)
        assert natively(python) == 0
        assert python.metric("prompts_read_total", by="python", reason="off") == 2
        await until(python.nothing_in_flight)


async def test_a_body_of_31_mb_is_read_beside_others(stage: Stage, encoder: FastEncoder) -> None:
    await start(stage, encoder)
    long = {"messages": [{"role": "user", "content": "word " * (31 * 1024 * 1024 // 5)}]}

    async def ask(body: dict[str, Any]) -> int:
        data = io.BytesIO(json.dumps(body).encode())
        async with stage.client.post("/v1/chat/completions", data=data) as response:
            await response.read()
            return response.status

    asked = asyncio.gather(ask(long), *(ask({"messages": [USER]}) for _ in range(40)))
    assert set(await asked) == {200}
    assert natively(stage) == 41


async def test_a_conversations_past_is_tokenized_once_for_each_tenant(
    stage: Stage, encoder: FastEncoder
) -> None:
    await start(stage, encoder, tenant_header="x-tenant")
    turns = [{"role": "user", "content": f"turn {number} " * 50} for number in range(3)]

    async def hit_bytes(count: int, headers: dict[str, str]) -> float:
        before = stage.metric("conversation_cache_text_bytes_total", result="hit")
        body = {"messages": turns[:count]}
        async with stage.client.post("/v1/chat/completions", json=body, headers=headers) as answer:
            assert answer.status == 200
        return stage.metric("conversation_cache_text_bytes_total", result="hit") - before

    bearer, tenant = {"authorization": "Bearer a"}, {"x-tenant": "a"}
    turn_bytes = len("<user>" + ("turn 0 " * 50).strip())
    for headers in ({}, bearer, {"authorization": "Bearer b"}, tenant, {"x-tenant": "Bearer a"}):
        assert [await hit_bytes(count, headers) for count in (1, 2, 3)] == [
            0,
            turn_bytes,
            2 * turn_bytes,
        ]
    assert await hit_bytes(3, bearer | tenant) == 3 * turn_bytes  # the header names the tenant
    assert stage.metric("conversation_cache_bytes") > 0


async def test_without_a_conversation_cache_prompts_are_read_too(
    stage: Stage, encoder: FastEncoder
) -> None:
    await start(stage, encoder, conversation_cache_bytes_max=0)
    async with stage.client.post("/v1/chat/completions", json={"messages": [USER]}) as answer:
        assert answer.status == 200
    assert natively(stage) == 1
    assert stage.metric("conversation_cache_text_bytes_total", result="miss") == 0


async def test_a_client_that_leaves_while_its_prompt_is_read_leaves_nothing_behind(
    stage: Stage, encoder: FastEncoder
) -> None:
    await start(stage, encoder)
    body = json.dumps({"prompt": "word " * 1_000_000}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    address = stage.frontend.api.address
    for _ in range(4):
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(head.encode() + body)
        await writer.drain()
        writer.transport.abort()
    async with stage.client.post("/v1/completions", json={"prompt": "a"}) as response:
        assert response.status == 200
    # Each counts as answered or as left, and none stays in flight: the fixture waits for that.
    await until(lambda: stage.metric("requests_in_flight") == 0)


async def test_a_policy_without_tokens_reads_the_fields_alone(
    stage: Stage, encoder: FastEncoder
) -> None:
    await start(stage, encoder, policy="round-robin")
    body = {"messages": [{"role": "user", "content": 5}], "model": "another"}
    async with stage.client.post("/v1/chat/completions", json=body) as response:
        assert response.status == 404
    body["model"] = MODEL
    async with stage.client.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200
    assert natively(stage) == 2
    assert not stage.indexers.asked


async def test_the_data_plane_asks_the_indexers_while_they_answer(engine: str) -> None:
    indexer = Indexer()
    async with frontend(engine, [indexer], "--deadline-ms", "60") as running:
        await running.until_ready()
        async with (
            aiohttp.ClientSession(f"http://{engine}") as client,
            client.post("/tokenize", json={"prompt": running.text}) as response,
        ):
            tokens = (await response.json())["tokens"]
        _, headers, _ = await running.complete(prompt=tokens)
        assert headers["x-kvatlas-reason"] == "kv-match"
        assert int(headers["x-kvatlas-depth"]) == (len(tokens) - 1) // BLOCK_SIZE
        await running.until_counted(1, "prompts_read_total", by="native", reason="none")
        assert await running.metric("routing_seconds_count", stage="find") == 1

        assert indexer.server is not None
        host, port = indexer.server.address
        indexer.server.stop(0.0)
        for _ in range(6):
            _, headers, _ = await running.complete(prompt=tokens)
            assert headers["x-kvatlas-reason"] == "fallback-no-indexer"
        await running.until_counted(6, "fallbacks_total", reason="fallback-no-indexer")
        assert await running.metric("indexer_calls_skipped_total") > 0

        indexer.serve(host, port)
        async with asyncio.timeout(30):
            while True:  # until a trial of the circuit breaker is due
                _, headers, _ = await running.complete(prompt=tokens)
                if headers["x-kvatlas-reason"] == "kv-match":
                    break
                await asyncio.sleep(0.05)
        _, headers, _ = await running.complete(prompt=tokens)
        assert headers["x-kvatlas-reason"] == "kv-match"
