"""A real mock engine process, asked as clients of vLLM ask it."""

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from kvatlas_testing.mock_engine import EngineProcess, running_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one engine serves the module

PROMPT = list(range(1000, 1040))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process() -> AsyncIterator[EngineProcess]:
    flags = ("--model", "m", "--lora", "sql", "--blocks", "64", "--speedup", "inf")
    async with running_engine(*flags, "--dp-ranks", "2") as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def engine(http: aiohttp.ClientSession, process: EngineProcess) -> EngineProcess:
    """The module's engine, empty: it comes back as if its process had been killed."""
    async with http.post(f"{process.url}/debug/fault", json={"restart": True}) as response:
        assert (response.status, await response.json()) == (200, {})
    return process


async def post(
    http: aiohttp.ClientSession, url: str, body: object, **headers: str
) -> tuple[int, Any, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.post(url, json=body, headers=named) as response:
        text = await response.text()
        served_by = response.headers.get("x-mock-engine-rank", "")
        return response.status, json.loads(text) if text else None, served_by


async def events_of(http: aiohttp.ClientSession, url: str, body: object) -> list[str]:
    async with http.post(url, json=body) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        text = await response.text()
    events = text.split("\n\n")
    assert events.pop() == ""
    return [event.removeprefix("data: ") for event in events]


async def metrics(http: aiohttp.ClientSession, process: EngineProcess) -> dict[str, float]:
    async with http.get(f"{process.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def until(
    http: aiohttp.ClientSession, process: EngineProcess, name: str, value: float
) -> None:
    """Poll a metric; the test's own time limit ends a wait in vain."""
    while (await metrics(http, process))[name] != value:
        pass


def labelled(name: str, rank: int = 0) -> str:
    return f'{name}{{engine="{rank}",model_name="m"}}'


async def test_a_completion_streams_one_chunk_a_token_then_usage_then_the_end(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    body = {
        "model": "m",
        "prompt": PROMPT,
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    *chunks, usage, done = await events_of(http, f"{engine.url}/v1/completions", body)
    assert done == "[DONE]"
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"] == {
        "prompt_tokens": 40,
        "total_tokens": 45,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"]
    assert choices[0]["prompt_token_ids"] == PROMPT
    status, whole, _ = await post(
        http, f"{engine.url}/v1/completions", {**body, "stream": False}, X_data_parallel_rank="0"
    )
    assert status == 200
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == "".join(choice["text"] for choice in choices)
    assert whole["choices"][0]["token_ids"] == [t for c in choices for t in c["token_ids"]]
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


async def test_a_chat_has_the_tokens_that_tokenize_says(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "ö"}],
        },
    ]
    _, tokenized, _ = await post(http, f"{engine.url}/tokenize", {"messages": messages})
    _, chat, _ = await post(
        http,
        f"{engine.url}/v1/chat/completions",
        {"messages": messages, "max_tokens": 4, "return_token_ids": True},
    )
    assert chat["prompt_token_ids"] == tokenized["tokens"]
    assert chat["usage"]["prompt_tokens"] == tokenized["count"] == len(tokenized["tokens"])
    assert len(chat["choices"][0]["message"]["content"]) == 4
    _, text, _ = await post(http, f"{engine.url}/detokenize", {"tokens": tokenized["tokens"]})
    assert text["prompt"] == ("<|system|>Be brief.<|end|>\n<|user|>How \nö<|end|>\n<|assistant|>")
    stream = {"messages": messages, "stream": True}  # nobody limits it: the model ends by itself
    first, *rest = await events_of(http, f"{engine.url}/v1/chat/completions", stream)
    assert json.loads(first)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "stop"


async def test_what_is_shared_is_cached_apart_by_adapter_and_salt(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    async def cached(**extra: object) -> int:
        body = {"prompt": PROMPT, "max_tokens": 1, **extra}
        url = f"{engine.url}/v1/completions"
        _, answer, _ = await post(http, url, body, X_data_parallel_rank="1")
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    kinds: list[dict[str, object]] = [{}, {"model": "sql"}, {"cache_salt": "t"}]
    assert [await cached(**kind) for kind in kinds] == [0, 0, 0]
    assert [await cached(**kind) for kind in kinds] == [32, 32, 32]


BAD_REQUESTS: list[tuple[str, object, int, str]] = [
    ("completions", {"model": "other", "prompt": "a"}, 404, "`other` does not exist"),
    ("completions", {"prompt": [1] * 2000}, 400, "maximum context length is 1024 tokens"),
    ("completions", {"prompt": "a", "max_tokens": 1024}, 400, "maximum context length"),
    ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens must be at least 1"),
    ("completions", {"prompt": []}, 400, "cannot be empty"),
    ("completions", {}, 400, "a prompt is needed"),
    ("completions", {"prompt": [[1], []]}, 400, "cannot be empty"),
    ("completions", {"prompt": ["a", 1]}, 400, "cannot be mixed"),
    ("completions", {"prompt": "a", "logprobs": 21}, 400, "logprobs must be 0 to 20"),
    ("completions", {"prompt": "a", "n": 0}, 400, "n must be 1 to 128"),
    ("completions", {"prompt": [1, -1]}, 400, "out of vocabulary"),
    ("completions", {"prompt": [1, 2**32]}, 400, "out of vocabulary"),
    ("completions", {"prompt": [1, "a"]}, 400, "prompt: "),
    ("completions", {"prompt": '"', "n": "2"}, 400, "cannot be read"),
    ("completions", ["a"], 400, "cannot be read"),
    ("chat/completions", {"messages": "hi"}, 400, "messages"),
    ("chat/completions", {"messages": [{"content": "hi"}]}, 400, "role"),
]


async def test_a_bad_request_gets_an_error_object(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    for path, body, status, says in BAD_REQUESTS:
        got, answer, _ = await post(http, f"{engine.url}/v1/{path}", body)
        assert (got, answer["error"]["code"]) == (status, status)
        assert says in answer["error"]["message"]
    assert (await metrics(http, engine))[labelled("vllm:num_requests_running")] == 0


async def test_vectors_scores_and_classes_are_in_the_forms_of_vllm(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    async def ask(path: str, **body: object) -> Any:  # noqa: ANN401 - any JSON
        status, answer, _ = await post(http, f"{engine.url}{path}", body)
        assert status == 200, answer
        return answer

    two = await ask("/v1/embeddings", input=["a b", [1, 2, 3]], dimensions=4)
    assert [each["index"] for each in two["data"]] == [0, 1]
    assert sum(part * part for part in two["data"][0]["embedding"]) == pytest.approx(1.0)
    assert two["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    again = await ask("/v1/embeddings", input="a b", encoding_format="base64", dimensions=4)
    packed = struct.unpack("<4f", base64.b64decode(again["data"][0]["embedding"]))
    assert packed == pytest.approx(two["data"][0]["embedding"])
    assert len((await ask("/pooling", input=[1, 2]))["data"][0]["data"]) == 64
    (classified,) = (await ask("/classify", input="a"))["data"]
    assert sum(classified["probs"]) == pytest.approx(1.0)
    scores = (await ask("/v1/score", text_1="abc", text_2=["abc", "xyz"]))["data"]
    assert [each["score"] for each in scores] == [1.0, 0.0]
    ranked = await ask("/v2/rerank", query="abc", documents=["xyz", {"text": "abc"}], top_n=1)
    assert [(each["index"], each["document"]["text"]) for each in ranked["results"]] == [(1, "abc")]
    form = aiohttp.FormData({"model": "m"})
    form.add_field("file", b"RIFF", filename="a.wav")
    async with http.post(f"{engine.url}/v1/audio/transcriptions", data=form) as response:
        assert (await response.json())["text"].count(" ") == 7
    bad: list[tuple[str, dict[str, object]]] = [
        ("/v1/embeddings", {"input": []}),
        ("/v1/embeddings", {"input": [{}]}),
        ("/v1/embeddings", {"input": "a", "dimensions": 65}),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}),
        ("/pooling", {"input": [-1]}),
        ("/score", {"text_1": ["a", "b"], "text_2": "a"}),
        ("/rerank", {"query": "a", "documents": []}),
    ]
    for path, body in bad:
        status, answer, _ = await post(http, f"{engine.url}{path}", body)
        assert (status, answer["error"]["code"]) == (400, 400)


async def test_a_rank_is_honoured_and_must_exist(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    url = f"{engine.url}/v1/completions"
    body = {"prompt": PROMPT, "max_tokens": 1}
    async with http.get(f"{engine.url}/debug/cache?dp_rank=1") as response:
        assert (await response.json())["blocks"] == {"device": []}
    for rank in ("1", "0", "1"):
        status, _, served_by = await post(http, url, body, X_data_parallel_rank=rank)
        assert (status, served_by) == (200, rank)
    status, answer, _ = await post(http, url, body, X_data_parallel_rank="2")
    assert status == 400
    assert answer["error"]["message"] == "data_parallel_rank 2 is out of range [0, 2)."
    status, _, _ = await post(http, url, body, X_data_parallel_rank="--1")
    assert status == 200
    async with http.get(f"{engine.url}/debug/cache?dp_rank=1") as response:
        assert len((await response.json())["blocks"]["device"]) == 2


async def test_the_pages_around_the_model_are_those_of_vllm(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    async def get(path: str) -> Any:  # noqa: ANN401 - any JSON
        async with http.get(f"{engine.url}{path}") as response:
            assert response.status == 200
            return await response.json()

    models = (await get("/v1/models"))["data"]
    assert [(m["id"], m["parent"], m["max_model_len"]) for m in models] == [
        ("m", None, 1024),
        ("sql", "m", None),
    ]
    assert await get("/version") == {"version": "0.33.0"}
    sources = await get("/kv_event_sources")
    assert [source["data_parallel_rank"] for source in sources] == [0, 1]
    assert sources[0]["endpoint"] == engine.events
    base = int(engine.events.rpartition(":")[2])
    assert sources[1]["endpoint"] == f"tcp://127.0.0.1:{base + 1}"
    base = int(engine.replay.rpartition(":")[2])
    assert sources[1]["replay_endpoint"] == f"tcp://127.0.0.1:{base + 1}"
    async with http.get(f"{engine.url}/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with http.get(f"{engine.admin_url}/readyz") as response:
        assert response.status == 200


async def test_metrics_count_under_the_names_of_vllm(
    http: aiohttp.ClientSession, engine: EngineProcess
) -> None:
    for _ in range(2):
        body = {"prompt": PROMPT, "max_tokens": 3}
        await post(http, f"{engine.url}/v1/completions", body, X_data_parallel_rank="0")
    seen = await metrics(http, engine)
    assert seen[labelled("vllm:prefix_cache_queries_total")] == 80
    assert seen[labelled("vllm:prefix_cache_hits_total")] == 32
    assert seen[labelled("vllm:prefix_cache_hits_total", rank=1)] == 0
    assert seen[labelled("vllm:generation_tokens_total")] == 6
    assert seen[labelled("vllm:num_requests_running")] == 0
    assert seen[labelled("vllm:num_requests_waiting")] == 0
    assert seen[labelled("vllm:kv_cache_usage_perc")] == 0
    assert seen[labelled("vllm:time_to_first_token_seconds_count")] == 2
    name = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="m"}'
    assert seen[name] == 2
    (config,) = [n for n in seen if n.startswith("vllm:cache_config_info") and 'engine="0"' in n]
    assert 'block_size="16"' in config
    assert 'num_gpu_blocks="64"' in config


async def test_a_client_that_leaves_frees_its_blocks(http: aiohttp.ClientSession) -> None:
    # An hour a step: only the disconnection can end the requests.
    flags = ("--model", "m", "--blocks", "64", "--step-ms", "3600000", "--max-running", "1")
    async with running_engine(*flags) as engine:
        url = f"{engine.url}/v1/completions"
        running, waiting = (
            asyncio.create_task(post(http, url, {"prompt": PROMPT, "stream": stream}))
            for stream in (True, False)
        )
        await until(http, engine, labelled("vllm:num_requests_running"), 1)
        await until(http, engine, labelled("vllm:num_requests_waiting"), 1)
        assert (await metrics(http, engine))[labelled("vllm:kv_cache_usage_perc")] > 0
        waiting.cancel()
        await until(http, engine, labelled("vllm:num_requests_waiting"), 0)
        running.cancel()
        await until(http, engine, labelled("vllm:num_requests_running"), 0)
        assert (await metrics(http, engine))[labelled("vllm:kv_cache_usage_perc")] == 0
        await asyncio.gather(running, waiting, return_exceptions=True)


async def test_it_ends_on_sigterm_with_status_0(http: aiohttp.ClientSession) -> None:
    async with running_engine("--model", "m", "--step-ms", "3600000", "--grace-s", "0") as engine:
        url = f"{engine.url}/v1/completions"
        hung = asyncio.create_task(post(http, url, {"prompt": PROMPT}))
        await until(http, engine, labelled("vllm:num_requests_running"), 1)
        engine.handle.terminate()
        assert await engine.handle.wait() == 0
        with pytest.raises(aiohttp.ClientError):
            await hung


async def test_impossible_settings_end_it_with_status_2() -> None:
    with pytest.raises(RuntimeError, match="status 2"):
        async with running_engine("--blocks", "4", "--max-model-len", "65"):
            pass


async def test_a_port_in_use_ends_it_with_status_1(engine: EngineProcess) -> None:
    for flag, address in (("--listen", engine.ready["listen"]), ("--events", engine.events)):
        with pytest.raises(RuntimeError, match="status 1"):
            async with running_engine(flag, address):
                pass
