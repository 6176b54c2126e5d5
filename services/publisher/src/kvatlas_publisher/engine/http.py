"""Reads an engine's HTTP pages: load and capacity, block size, model.

The metrics page is read line by line for a handful of names, because parsing its thousands of lines
every second would cost more than the rest of this process.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from kvatlas_chassis import SettingsError
from kvatlas_events import Load

_SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TIMEOUT_S = 2.0
_PAGE_BYTES_MAX = 16 << 20
_VALUE_MAX = (1 << 53) - 1
"""Larger values are errors of the page and are ignored."""
_REQUESTS_MAX = (1 << 32) - 1
"""The largest number of requests that fits in a heartbeat."""

_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_CONFIG = "vllm:cache_config_info"
_TOKENS = "sglang:max_total_num_tokens"
_WANTED = (*_RUNNING, *_WAITING, *_USAGE, _CONFIG, _TOKENS)


@dataclass(frozen=True, slots=True)
class Scrape:
    """The values of one metrics page."""

    load: Load | None
    """None: the page has none of the metrics."""
    capacity_blocks: int
    """0: the page does not name it."""
    block_size: int | None
    """None: the page does not name it."""


@dataclass(frozen=True, slots=True)
class _Sample:
    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(page: str, *, dp_rank: int, block_size: int) -> Scrape:
    """Read a Prometheus page of vLLM or SGLang.

    Args:
        page: its text.
        dp_rank: vLLM labels samples with the rank, as `engine`. If some have this rank, only they
            are used; else all are.
        block_size: tokens a block; SGLang gives its capacity in tokens.
    """
    samples = list(_samples(page))
    ours = [each for each in samples if each.labels.get("engine") == str(dp_rank)] or samples
    running = [each.value for each in ours if each.name in _RUNNING]
    waiting = [each.value for each in ours if each.name in _WAITING]
    usage = [each.value for each in ours if each.name in _USAGE]
    load = None
    if running or waiting or usage:
        load = Load(
            requests_running=min(int(sum(running)), _REQUESTS_MAX),
            requests_waiting=min(int(sum(waiting)), _REQUESTS_MAX),
            kv_usage=min(max([*usage, 0.0]), 1.0),
        )
    nothing: Mapping[str, str] = {}
    config = next((each.labels for each in ours if each.name == _CONFIG), nothing)
    tokens = next((each.value for each in ours if each.name == _TOKENS), 0.0)
    capacity = _number(config.get("num_gpu_blocks")) or int(tokens) // block_size
    return Scrape(load, capacity, _number(config.get("block_size")) or None)


def _samples(page: str) -> Iterator[_Sample]:
    for line in page.splitlines():
        if not line.startswith(_WANTED):
            continue
        match = _SAMPLE.match(line)
        if match is None or match["name"] not in _WANTED:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if 0 <= value <= _VALUE_MAX:
            labels = dict(_LABEL.findall(match["labels"] or ""))
            yield _Sample(match["name"], labels, value)


def _number(text: str | None) -> int:
    if text is None or not text.isdecimal() or len(text) > len(str(_VALUE_MAX)):
        return 0
    number = int(text)
    return number if number <= _VALUE_MAX else 0


class EngineHttp:
    """One engine's HTTP. Methods return None if the engine does not answer as expected."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.answers = False
        """The last request was answered, possibly with an error status."""
        self._session = session
        self._url = url

    async def scrape(self, *, dp_rank: int, block_size: int) -> Scrape | None:
        """Read `/metrics`."""
        page = await self._get("/metrics")
        if page is None:
            return None
        return parse_metrics(page.decode(errors="replace"), dp_rank=dp_rank, block_size=block_size)

    async def models(self) -> list[str] | None:
        """Read the base models of `/v1/models`; adapters name a parent and are left out."""
        body = await self._get("/v1/models")
        if body is None:
            return None
        try:
            return _base_models(body)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None  # it is not the list of models of an OpenAI server

    async def _get(self, path: str) -> bytes | None:
        try:
            async with self._session.get(
                self._url + path, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)
            ) as response:
                body = await response.content.read(_PAGE_BYTES_MAX)
                while not response.content.at_eof() and len(body) < _PAGE_BYTES_MAX:
                    body += await response.content.read(_PAGE_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.answers = False
            return None
        self.answers = True
        return body if response.status == 200 else None  # noqa: PLR2004 - OK


def _base_models(body: bytes) -> list[str]:
    document: Any = json.loads(body)
    return [str(each["id"]) for each in document["data"] if not each.get("parent")]


def check_agreement(
    scrape: Scrape | None, models: list[str] | None, *, model: str, block_size: int
) -> None:
    """Compare the engine's model and block size with the configured ones.

    Raises:
        SettingsError: they differ; the text names the value to use.
    """
    if models and model not in models:
        raise SettingsError(
            f"kvatlas publisher: the engine does not serve --model {model}; "
            f"use --model {' or '.join(models)}"
        )
    if scrape is not None and scrape.block_size not in {None, block_size}:
        raise SettingsError(
            f"kvatlas publisher: the engine's blocks are not of --block-size {block_size}; "
            f"use --block-size {scrape.block_size}"
        )
