"""Requests through the whole frontend: who gets them, what goes up, what comes down."""

import json

import numpy as np
import pytest

from kvatlas_client import WorkerState
from kvatlas_hashing import chunk_hashes
from tests.integration.frontend.stage import BLOCK_SIZE, MODEL, NO_INDEXER, Stage, streamed, until

TEXT = "twelve chars"  # and a token that opens a text: 13 tokens, 3 blocks of 4 before the last
ADAPTER = {"id": "poet", "object": "model", "parent": MODEL}


def body(**fields: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": TEXT} | fields


def hashes(*, lora_name: str | None = None, cache_salt: str | None = None) -> list[int]:
    tokens = np.array([256, *TEXT.encode()], dtype=np.uint32)
    found = chunk_hashes(tokens, BLOCK_SIZE, lora_name=lora_name, cache_salt=cache_salt)
    return found.tolist()


async def test_the_worker_that_holds_the_prompt_answers(stage: Stage) -> None:
    await stage.engine(7)
    await stage.engine(8)
    await stage.start()
    await stage.announce()
    stage.indexers.matches = [(8, 0, 3)]
    async with stage.client.post("/v1/completions", json=body()) as response:
        assert response.status == 200
        assert (await response.json())["choices"][0]["text"] == "ok"
        assert response.headers["x-kvatlas-worker"] == "8/0"
        assert response.headers["x-kvatlas-depth"] == "3"
        assert response.headers["x-kvatlas-reason"] == "kv-match"
    assert [asked.tolist() for asked in stage.indexers.asked] == [hashes()]
    await until(lambda: stage.metric("requests_total", route="completions", status="200") == 1)
    assert stage.metric("decisions_total", reason="kv-match") == 1


async def test_the_body_goes_up_byte_for_byte_with_the_rank_pinned(stage: Stage) -> None:
    engine = await stage.engine(7, 3)
    await stage.start()
    await stage.announce()
    raw = b'{ "prompt" : "caf\\u00e9", "unknown_option": [1.50] }'
    headers = {
        "Authorization": "Bearer key",
        "X-Data-Parallel-Rank": "9",
        "x-kvatlas-worker": "1/1",
        "X-Custom": "kept",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "dropped",
        "Content-Type": "application/json",
    }
    async with stage.client.post("/v1/completions", data=raw, headers=headers) as response:
        assert response.headers["x-kvatlas-worker"] == "7/3"
    assert engine.bodies == [raw]
    sent = engine.headers[0]
    assert sent["authorization"] == "Bearer key"
    assert sent["x-data-parallel-rank"] == "3"
    assert sent["x-custom"] == "kept"
    assert "x-hop" not in sent
    assert "x-kvatlas-worker" not in sent


async def test_of_an_engines_headers_only_those_for_a_client_come_down(stage: Stage) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", json=body()) as response:
        assert response.headers["X-Request-Id"] == "abc"
        assert "Set-Cookie" not in response.headers
        assert "engine-7" not in str(response.headers)


async def test_a_stream_comes_down_unchanged(stage: Stage) -> None:
    events = [b'data: {"n": 1}\n\n', b'data: {"n": 2}\n\ndata: [DO', b"NE]\n\n"]
    await stage.engine(7, behaviour=streamed(*events))
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", json=body(stream=True)) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["x-kvatlas-reason"] == "no-match"
        assert await response.read() == b"".join(events)


async def test_the_last_token_is_never_counted_as_cached(stage: Stage) -> None:
    """12 tokens are 3 full blocks, but the third holds the token that is computed again."""
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    stage.indexers.matches = [(7, 0, 3)]
    tokens = list(range(12))
    async with stage.client.post("/v1/completions", json=body(prompt=tokens)) as response:
        assert response.headers["x-kvatlas-depth"] == "2"
    assert [len(asked) for asked in stage.indexers.asked] == [2]


async def test_a_salt_enters_the_hashes(stage: Stage) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", json=body(cache_salt="tenant")) as response:
        assert response.status == 200
    assert stage.indexers.asked[0].tolist() == hashes(cache_salt="tenant")


async def test_an_adapter_is_looked_up_under_its_name_and_sent_where_it_is_served(
    stage: Stage,
) -> None:
    base = {"id": MODEL, "object": "model", "parent": None}
    await stage.engine(7)
    await stage.engine(8, models=[base, ADAPTER])
    await stage.start()
    await stage.announce()
    stage.indexers.matches = [(7, 0, 3)]
    for _ in range(3):
        async with stage.client.post("/v1/completions", json=body(model="poet")) as response:
            assert response.headers["x-kvatlas-worker"] == "8/0"
    assert stage.indexers.asked[0].tolist() == hashes(lora_name="poet")
    async with stage.client.get("/v1/models") as response:
        listed = await response.json()
    assert {entry["id"]: entry.get("parent") for entry in listed["data"]} == {
        MODEL: None,
        "poet": MODEL,
    }


@pytest.mark.parametrize("failing", [True, False])
async def test_without_an_indexer_load_decides_and_says_so(stage: Stage, failing: bool) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    stage.indexers.failure = NO_INDEXER if failing else None
    async with stage.client.post("/v1/completions", json=body()) as response:
        assert response.status == 200
        reason = response.headers["x-kvatlas-reason"]
    assert reason == ("fallback-no-indexer" if failing else "no-match")
    assert stage.metric("fallbacks_total", reason="fallback-no-indexer") == int(failing)


async def test_indexers_that_do_not_answer_are_left_alone_for_a_while(stage: Stage) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    stage.indexers.failure = NO_INDEXER
    for _ in range(6):
        async with stage.client.post("/v1/completions", json=body()) as response:
            assert response.headers["x-kvatlas-reason"] == "fallback-no-indexer"
    # On a slow machine a trial may be due before the sixth request.
    skipped = stage.metric("indexer_calls_skipped_total")
    assert len(stage.indexers.asked) + skipped == 6
    assert skipped > 0
    stage.indexers.failure = None
    reason = "fallback-no-indexer"
    while reason == "fallback-no-indexer":
        async with stage.client.post("/v1/completions", json=body()) as response:
            reason = response.headers["x-kvatlas-reason"]
    assert reason == "no-match"


@pytest.mark.parametrize("state", [s for s in WorkerState if s is not WorkerState.LIVE])
async def test_matches_of_a_worker_that_is_not_live_do_not_count(
    stage: Stage, state: WorkerState
) -> None:
    await stage.engine(7)
    await stage.engine(8)
    await stage.start()
    await stage.announce(stage.record(7, state=state), stage.record(8))
    stage.indexers.matches = [(7, 0, 3), (8, 0, 1)]
    async with stage.client.post("/v1/completions", json=body()) as response:
        assert response.headers["x-kvatlas-worker"] == "8/0"
        assert response.headers["x-kvatlas-depth"] == "1"


@pytest.mark.parametrize("state", [s for s in WorkerState if s is not WorkerState.LIVE])
async def test_a_worker_that_is_not_matched_is_routable_by_load(
    stage: Stage, state: WorkerState
) -> None:
    await stage.engine(7)
    await stage.start()
    await stage.announce(stage.record(7, state=state))
    async with stage.client.post("/v1/completions", json=body()) as response:
        assert response.status == 200
        assert response.headers["x-kvatlas-worker"] == "7/0"
        assert response.headers["x-kvatlas-reason"] == "no-match"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("least-loaded", "least-loaded"),
        ("least-requests", "least-loaded"),
        ("round-robin", "round-robin"),
        ("random", "random"),
        ("session-affinity", "session-affinity"),
        ("consistent-hashing", "consistent-hash"),
    ],
)
async def test_a_policy_without_matches_asks_no_indexer(
    stage: Stage, policy: str, reason: str
) -> None:
    await stage.engine(7)
    await stage.start(policy=policy)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=body()) as response:
        assert response.headers["x-kvatlas-reason"] == reason
    assert stage.indexers.asked == []


@pytest.mark.parametrize("policy", ["session-affinity", "consistent-hashing"])
@pytest.mark.parametrize(
    ("headers", "user"),
    [({"Session-Id": "s"}, None), ({"X-Session-Affinity": "s"}, None), ({}, "u")],
)
async def test_a_session_stays_on_its_worker(
    stage: Stage, policy: str, headers: dict[str, str], user: str | None
) -> None:
    """By a header, in any case, or by the body's user; the prompts have nothing in common."""
    for worker in range(4):
        await stage.engine(worker)
    await stage.start(policy=policy)
    await stage.announce()
    fields = {} if user is None else {"user": user}
    workers: set[str] = set()
    for number in range(6):
        text = f"{number} " * 40
        async with stage.client.post(
            "/v1/completions", json=body(prompt=text, **fields), headers=headers
        ) as response:
            assert response.status == 200
            workers.add(response.headers["x-kvatlas-worker"])
    assert len(workers) == 1


async def test_a_burst_spreads_over_idle_workers(stage: Stage) -> None:
    """None has answered yet, so only what is in flight from here can tell them apart."""
    for worker in range(4):
        await stage.engine(worker, behaviour=streamed(b"data: 1\n\n", then="wait"))
    await stage.start()
    await stage.announce()
    responses = [
        await stage.client.post("/v1/completions", json=body(stream=True)) for _ in range(8)
    ]
    workers = [response.headers["x-kvatlas-worker"] for response in responses]
    assert sorted(workers) == sorted(2 * ["0/0", "1/0", "2/0", "3/0"])
    for response in responses:
        response.close()


async def test_a_batch_is_routed_by_its_first_prompt(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    async with stage.client.post("/v1/completions", json=body(prompt=[TEXT, "b"])) as response:
        assert response.status == 200
    assert stage.indexers.asked[0].tolist() == hashes()
    assert json.loads(engine.bodies[0])["prompt"] == [TEXT, "b"]


async def test_token_drift_and_kept_promises_are_counted(stage: Stage) -> None:
    """The engine says 13 tokens, 8 of them cached: two blocks."""
    await stage.engine(7)
    await stage.start()
    await stage.announce()
    stage.indexers.matches = [(7, 0, 2)]
    await (await stage.client.post("/v1/completions", json=body())).read()
    stage.indexers.matches = [(7, 0, 3)]
    await (await stage.client.post("/v1/completions", json=body(prompt=TEXT + "!"))).read()
    await until(lambda: stage.metric("cached_blocks_total") == 4)
    assert stage.metric("prompts_compared_total", result="equal") == 1
    assert stage.metric("prompts_compared_total", result="drift") == 1
    assert stage.metric("promises_total", result="kept") == 1
    assert stage.metric("promises_total", result="short") == 1
    assert stage.metric("promised_blocks_total") == 5


async def test_an_engine_is_asked_for_tokens_where_none_are_known_here(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start(ask_engine=True)
    await stage.announce()
    async with stage.client.post("/v1/completions", json=body()) as response:
        assert response.headers["x-kvatlas-reason"] == "no-match"
    asked = {"model": MODEL, "prompt": TEXT, "add_special_tokens": True}
    assert engine.tokenized == [asked]
    tokens = np.frombuffer(TEXT.encode(), dtype=np.uint8).astype(np.uint32)
    assert stage.indexers.asked[0].tolist() == chunk_hashes(tokens, BLOCK_SIZE)[:2].tolist()


async def test_a_conversation_without_a_template_is_rendered_by_an_engine(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start()
    await stage.announce()
    messages = [{"role": "user", "content": "hello there"}]
    chat = {"model": MODEL, "messages": messages, "tools": [{"type": "function"}]}
    async with stage.client.post("/v1/chat/completions", json=chat) as response:
        assert response.status == 200
        assert response.headers["x-kvatlas-reason"] == "no-match"
    assert engine.tokenized[0]["messages"] == messages
    assert engine.tokenized[0]["tools"] == chat["tools"]
    assert engine.tokenized[0]["add_special_tokens"] is False


async def test_when_no_engine_tokenizes_load_decides_and_says_so(stage: Stage) -> None:
    engine = await stage.engine(7)
    await stage.start(ask_engine=True)
    await stage.announce()

    engine.tokenize_fails = True
    async with stage.client.post("/v1/completions", json=body()) as response:
        assert response.status == 200
        assert response.headers["x-kvatlas-reason"] == "fallback-no-tokens"
    assert stage.indexers.asked == []
    assert stage.metric("fallbacks_total", reason="fallback-no-tokens") == 1
