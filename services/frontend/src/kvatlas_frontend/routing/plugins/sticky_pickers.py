"""Pick plugins that send related requests to one worker: by memory, or by a hash."""

from math import ceil
from typing import Any, Final

import numpy as np
from pydantic import Field

from kvatlas_chassis import Settings
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import Kind, Mask, NoParams, PluginSpec, Services, Unit, Values
from kvatlas_frontend.routing.plugins.pickers import LowestCostPlugin
from kvatlas_frontend.routing.recollection import LastWorkers
from kvatlas_frontend.routing.rendezvous import ranks
from kvatlas_frontend.routing.slots import HASH_KEY, SESSION

_BOTH: Final = (Unit.TOKENS, Unit.SHARE)


class SessionParams(Settings):
    """`margin`: a session moves once another worker is cheaper by more than this, in the scores' unit.

    `ttl_s`: a session is forgotten so long after its last request. `sessions_max`: most of them.
    """

    margin: float = Field(default=0.0, ge=0)
    ttl_s: float = Field(default=3600.0, gt=0)
    sessions_max: int = Field(default=100_000, gt=0)


class SessionPlugin:
    """Keeps a session on its worker, until a filter removes that one or another is much cheaper.

    A new session, and a request without one, goes to the cheapest worker. The session's first
    request is counted on its worker before the next choice, so a burst of sessions spreads.
    """

    reason = Reason.SESSION

    def __init__(self, services: Services, params: SessionParams) -> None:
        self._fleet = services.fleet
        self._now_s = services.now_s
        self._margin = params.margin
        self._workers = LastWorkers(keys_max=params.sessions_max, ttl_s=params.ttl_s)
        self._cheapest = LowestCostPlugin(services, NoParams())

    def pick(self, context: RoutingContext, candidates: Mask, costs: Values) -> int:
        """See `Picker`."""
        session = context[SESSION]
        if not session:
            return self._cheapest.pick(context, candidates, costs)
        now_s = self._now_s()
        worker = self._workers.get(session, now_s)
        row = None if worker is None else self._fleet.rows.get(worker)
        if (
            row is None
            or not candidates[row]
            or costs[row] - costs[candidates].min() > self._margin
        ):
            row = self._cheapest.pick(context, candidates, costs)
        self._workers.put(session, self._fleet.worker(row).key, now_s)
        return row


class ConsistentHashParams(Settings):
    """`load_factor`: a worker takes at most this times the mean number of requests."""

    load_factor: float = Field(default=1.25, ge=1, allow_inf_nan=False)


class ConsistentHashPlugin:
    """Picks the worker that the request's key ranks first, among those below their bound.

    The bound is ceil(load_factor * (requests in flight + 1) / workers): V. Mirrokni, M. Thorup and
    M. Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016. Instead of a ring, workers are
    ranked by rendezvous hash, so a request whose worker is full goes to the second of its rank. A
    request without a key goes to the cheapest worker.
    """

    reason = Reason.HASH

    def __init__(self, services: Services, params: ConsistentHashParams) -> None:
        self._columns = services.fleet.columns
        self._load_factor = params.load_factor
        self._cheapest = LowestCostPlugin(services, NoParams())

    def pick(self, context: RoutingContext, candidates: Mask, costs: Values) -> int:
        """See `Picker`."""
        key = context[HASH_KEY]
        if key is None:
            return self._cheapest.pick(context, candidates, costs)
        columns = self._columns
        rows = candidates.nonzero()[0]
        requests = columns.requests[rows] + columns.requests_elsewhere[rows]
        bound = ceil(self._load_factor * (int(requests.sum()) + 1) / len(rows))
        free = rows[requests < bound]
        return int(free[np.argmax(ranks(columns.rendezvous_keys[free], key))])


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec("session", Kind.PICK, SessionParams, SessionPlugin, (SESSION,), takes=_BOTH),
    PluginSpec(
        "consistent-hash",
        Kind.PICK,
        ConsistentHashParams,
        ConsistentHashPlugin,
        (HASH_KEY,),
        takes=_BOTH,
    ),
)
