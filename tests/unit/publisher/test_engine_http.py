"""The facts read from an engine's HTTP pages, and the errors if they differ from the settings."""

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from kvatlas_chassis import SettingsError
from kvatlas_events import Load
from kvatlas_publisher.engine.http import EngineHttp, Scrape, check_agreement, parse_metrics

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1234"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="4321"} 1.0
python_info{version="3.12"} 1.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 4.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:token_usage{model_name="m"} 0.75
sglang:max_total_num_tokens{model_name="m"} 1000.0
"""


def test_vllm_pages_have_load_and_capacity_by_rank() -> None:
    first = Load(requests_running=3, requests_waiting=2, kv_usage=0.25)
    second = Load(requests_running=5, requests_waiting=0, kv_usage=0.5)
    assert parse_metrics(VLLM, dp_rank=0, block_size=16) == Scrape(first, 1234, 16)
    assert parse_metrics(VLLM, dp_rank=1, block_size=16) == Scrape(second, 4321, 16)


def test_older_vllm_names_its_cache_after_the_gpu() -> None:
    page = 'vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc{model_name="m"} 0.125\n'
    load = Load(requests_running=1, requests_waiting=0, kv_usage=0.125)
    assert parse_metrics(page, dp_rank=0, block_size=16) == Scrape(load, 0, None)


def test_sglang_pages_have_the_capacity_in_tokens() -> None:
    load = Load(requests_running=4, requests_waiting=1, kv_usage=0.75)
    assert parse_metrics(SGLANG, dp_rank=2, block_size=64) == Scrape(load, 15, None)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>no metrics</html>",
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n",
        "vllm:num_requests_running{ 1\nvllm:kv_cache_usage_perc x\n",
        'vllm:cache_config_info{num_gpu_blocks="None",block_size="None"} 1.0\n',
    ],
)
def test_a_page_without_the_metrics_gives_nothing(page: str) -> None:
    assert parse_metrics(page, dp_rank=0, block_size=16) == Scrape(None, 0, None)


@pytest.mark.parametrize(
    "page",
    [
        "vllm:num_requests_running 1e308\nvllm:num_requests_running 1e308\n",
        f'vllm:cache_config_info{{num_gpu_blocks="{"9" * 30}",block_size="{"9" * 16}"}} 1.0\n',
        f'vllm:cache_config_info{{num_gpu_blocks="{"9" * 5_000}"}} 1.0\n',
        "sglang:max_total_num_tokens 1e300\n",
    ],
)
def test_impossible_numbers_are_ignored(page: str) -> None:
    assert parse_metrics(page, dp_rank=0, block_size=16) == Scrape(None, 0, None)


def test_more_requests_than_a_heartbeat_holds_are_as_many_as_it_holds() -> None:
    page = "vllm:num_requests_running 4e9\nvllm:num_requests_running 4e9\n"
    load = Load(requests_running=2**32 - 1, requests_waiting=0, kv_usage=0.0)
    assert parse_metrics(page, dp_rank=0, block_size=16) == Scrape(load, 0, None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"data": ["m"]}',
        b'{"data": [[]]}',
        b'{"data": [{"name": "m"}]}',
        b'["m"]',
        b"[" * 100_000,
        b"\xff",
    ],
)
async def test_a_list_of_models_in_another_shape_is_ignored(body: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body)

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    async with TestServer(app) as server, ClientSession() as http:
        assert await EngineHttp(http, str(server.make_url("/")).rstrip("/")).models() is None


def test_another_block_size_is_refused_with_the_one_to_use() -> None:
    with pytest.raises(SettingsError, match="use --block-size 16"):
        check_agreement(Scrape(None, 0, 16), None, model="m", block_size=32)


def test_another_model_is_refused_with_the_one_to_use() -> None:
    with pytest.raises(SettingsError, match="use --model a or b"):
        check_agreement(None, ["a", "b"], model="m", block_size=16)


def test_what_an_engine_does_not_report_is_not_compared() -> None:
    check_agreement(None, None, model="m", block_size=16)
    check_agreement(Scrape(None, 0, None), [], model="m", block_size=16)
