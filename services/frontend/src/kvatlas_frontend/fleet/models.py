"""The models that the engines serve: the base model under its names, and its LoRA adapters.

They come from each engine's `/v1/models`. An entry with a `parent` is an adapter, and its id is the
`lora_name` that its blocks are hashed with. All other entries are names of the base model.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, cast

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from kvatlas_client import WorkerKey
from kvatlas_frontend.fleet.table import Fleet, Worker

log = logging.getLogger(__name__)

_CONCURRENT_MAX: Final = 16
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_SHOWN: Final = ("id", "object", "created", "owned_by", "parent", "max_model_len")


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """How requests for one model name are routed."""

    name: str  # the name that the engines use
    lora_name: str | None
    rows: NDArray[np.bool_] | None  # workers that serve it; None: all


class Dialect(Enum):
    """A kind of engine. Each converts requests of other APIs to conversations by its own rules."""

    VLLM = "vllm"
    SGLANG = "sglang"


class ModelCatalog:
    """The models of the fleet; the base model is known before any engine has answered."""

    def __init__(self, base: str, fleet: Fleet) -> None:
        self.base = base
        self._fleet = fleet
        self._entries: dict[WorkerKey, dict[str, dict[str, Any]]] = {}
        self._routes: dict[str, ModelRoute] = {}
        self._dialect: Dialect | None = None
        self._version = -1
        self._rows = 0
        self.adapters: dict[str, str] = {}  # names of adapters by model; replaced, never changed

    def route(self, name: str | None) -> ModelRoute | None:
        """The route of a requested model (None: the base model); None: no worker serves it."""
        self._refresh()
        return self._routes.get(self.base if name is None else name)

    def dialect(self) -> Dialect | None:
        """The kind of all engines, by the `owned_by` of their models; None: unknown or mixed."""
        self._refresh()
        return self._dialect

    def listing(self) -> list[dict[str, Any]]:
        """The entries of `/v1/models`: every model once, without the engines' file paths."""
        shown: dict[str, dict[str, Any]] = {
            self.base: {"id": self.base, "object": "model", "created": 0, "owned_by": "kvatlas"}
        }
        for entries in self._entries.values():
            for name, entry in entries.items():
                shown[name] = {key: entry[key] for key in _SHOWN if key in entry}
        return list(shown.values())

    def entry(self, name: str) -> dict[str, Any] | None:
        """The entry of one model; None: no worker serves it."""
        return next((entry for entry in self.listing() if entry["id"] == name), None)

    def learn(self, key: WorkerKey, document: object) -> None:
        """Store an engine's answer to `/v1/models`; ignore one that is no list of models."""
        if not isinstance(document, dict):
            return
        data = cast("dict[str, Any]", document).get("data")
        if not isinstance(data, list):
            return
        entries: dict[str, dict[str, Any]] = {}
        for item in cast("list[object]", data):
            if isinstance(item, dict):
                entry = cast("dict[str, Any]", item)
                if isinstance(entry.get("id"), str):
                    entries[entry["id"]] = entry
        if self._entries.get(key) != entries:
            self._entries[key] = entries
            self._version = -1

    async def poll_forever(self, session: aiohttp.ClientSession, *, interval_s: float) -> None:
        """Ask every engine as soon as workers change, and every `interval_s`."""
        version, due_s = -1, 0.0
        loop = asyncio.get_running_loop()
        step_s = min(interval_s, 0.1)
        while True:
            if self._fleet.version != version or loop.time() >= due_s:
                version, due_s = self._fleet.version, loop.time() + interval_s
                await self.poll_once(session)
            await asyncio.sleep(step_s)

    async def poll_once(self, session: aiohttp.ClientSession) -> None:
        """Ask every engine once, at most `_CONCURRENT_MAX` at a time."""
        gate = asyncio.Semaphore(_CONCURRENT_MAX)
        asked: Mapping[str, list[Worker]] = _by_url(self._fleet)

        async def one(workers: list[Worker]) -> None:
            async with gate:
                document = await _models(session, workers[0])
            for worker in workers:
                self.learn(worker.key, document)

        await asyncio.gather(*(one(workers) for workers in asked.values()))

    def _refresh(self) -> None:
        if self._version != self._fleet.version or self._rows != self._fleet.columns.rows:
            self._rebuild()

    def _rebuild(self) -> None:
        self._version = self._fleet.version
        self._rows = self._fleet.columns.rows
        self._entries = {k: v for k, v in self._entries.items() if k in self._fleet.rows}
        routes = {self.base: ModelRoute(self.base, None, None)}
        for key, entries in self._entries.items():
            row = self._fleet.rows[key]
            for name, entry in entries.items():
                if name == self.base:
                    continue
                route = routes.get(name)
                if route is None:
                    lora = name if entry.get("parent") else None
                    rows = np.zeros(self._rows, dtype=np.bool_)
                    route = routes[name] = ModelRoute(name, lora, rows)
                if route.rows is not None:
                    route.rows[row] = True
        self._routes = routes
        adapters = {name: route.lora_name for name, route in routes.items() if route.lora_name}
        if adapters != self.adapters:
            self.adapters = adapters
        self._dialect = _common_dialect(
            entry.get("owned_by")
            for entries in self._entries.values()
            for entry in entries.values()
        )


def _common_dialect(owners: Iterable[object]) -> Dialect | None:
    """The dialect that all owners of models name."""
    found = set(owners)
    return next((each for each in Dialect if found == {each.value}), None)


def _by_url(fleet: Fleet) -> dict[str, list[Worker]]:
    """Workers by engine address: the ranks of one engine share its answer."""
    workers: dict[str, list[Worker]] = {}
    for worker in fleet:
        if worker.urls:
            workers.setdefault(worker.record.engine_url, []).append(worker)
    return workers


async def _models(session: aiohttp.ClientSession, worker: Worker) -> object:
    try:
        async with session.get(
            worker.urls["/v1/models"], timeout=_TIMEOUT, allow_redirects=False
        ) as response:
            if response.status != 200:  # noqa: PLR2004 - the one that carries a list
                return None
            return msgspec.json.decode(await response.read())
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
        log.debug("worker %s did not list its models: %s", worker.name, error)
        return None
