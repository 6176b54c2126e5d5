"""Which models the engines serve: the base model under its names, and its adapters.

Learnt from each engine's `/v1/models`. An entry with a `parent` is an adapter, and its id is the
`lora_name` that the engine's blocks were hashed with; all others are names of the base model.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from kvatlas_frontend.fleet.table import Fleet, Member
from kvatlas_frontend.fleet.worker import WorkerKey

log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_SHOWN: Final = ("id", "object", "created", "owned_by", "parent", "max_model_len")


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """How requests for one model name are routed."""

    name: str  # as the engines know it
    lora_name: str | None
    rows: NDArray[np.bool_] | None  # workers that serve it; None: all


class ModelCatalog:
    """The models of the fleet; the base model is known before any engine has answered."""

    def __init__(self, base: str, fleet: Fleet) -> None:
        self._base = base
        self._fleet = fleet
        self._entries: dict[WorkerKey, dict[str, dict[str, Any]]] = {}
        self._routes: dict[str, ModelRoute] = {}
        self._version = -1
        self._rows = 0

    def route(self, name: str | None) -> ModelRoute | None:
        """The route of a requested model (None: the base); None: nobody serves it."""
        if self._version != self._fleet.version or self._rows != self._fleet.columns.rows:
            self._rebuild()
        return self._routes.get(self._base if name is None else name)

    def listing(self) -> list[dict[str, Any]]:
        """What `/v1/models` shows: every model once, without the engines' paths."""
        shown: dict[str, dict[str, Any]] = {
            self._base: {"id": self._base, "object": "model", "created": 0, "owned_by": "kvatlas"}
        }
        for entries in self._entries.values():
            for name, entry in entries.items():
                shown[name] = {key: entry[key] for key in _SHOWN if key in entry}
        return list(shown.values())

    def learnt(self, key: WorkerKey, document: object) -> None:
        """Take over an engine's answer to `/v1/models`; one that is no list of models is ignored."""
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

    async def poll_for_ever(self, session: aiohttp.ClientSession, *, interval_s: float) -> None:
        """Ask each engine once it is known, and every `interval_s` from then on."""
        version, due_s = -1, 0.0
        loop = asyncio.get_running_loop()
        step_s = min(interval_s, 0.1)
        while True:
            if self._fleet.version != version or loop.time() >= due_s:
                version, due_s = self._fleet.version, loop.time() + interval_s
                await self.poll_once(session)
            await asyncio.sleep(step_s)

    async def poll_once(self, session: aiohttp.ClientSession) -> None:
        """Ask every engine, a bounded number at once."""
        gate = asyncio.Semaphore(_AT_ONCE)
        asked: Mapping[str, list[Member]] = _by_url(self._fleet)

        async def one(members: list[Member]) -> None:
            async with gate:
                document = await _models(session, members[0])
            for member in members:
                self.learnt(member.key, document)

        await asyncio.gather(*(one(members) for members in asked.values()))

    def _rebuild(self) -> None:
        self._version = self._fleet.version
        self._rows = self._fleet.columns.rows
        self._entries = {k: v for k, v in self._entries.items() if k in self._fleet.rows}
        routes = {self._base: ModelRoute(self._base, None, None)}
        for key, entries in self._entries.items():
            row = self._fleet.rows[key]
            for name, entry in entries.items():
                if name == self._base:
                    continue
                route = routes.get(name)
                if route is None:
                    lora = name if entry.get("parent") else None
                    rows = np.zeros(self._rows, dtype=np.bool_)
                    route = routes[name] = ModelRoute(name, lora, rows)
                if route.rows is not None:
                    route.rows[row] = True
        self._routes = routes


def _by_url(fleet: Fleet) -> dict[str, list[Member]]:
    """The ranks of one engine share its address and its answer."""
    members: dict[str, list[Member]] = {}
    for member in fleet:
        if member.urls:
            members.setdefault(member.record.engine_url, []).append(member)
    return members


async def _models(session: aiohttp.ClientSession, member: Member) -> object:
    try:
        async with session.get(
            member.urls["/v1/models"], timeout=_TIMEOUT, allow_redirects=False
        ) as response:
            if response.status != 200:  # noqa: PLR2004 - the one that carries a list
                return None
            return msgspec.json.decode(await response.read())
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
        log.debug("worker %s did not list its models: %s", member.name, error)
        return None
