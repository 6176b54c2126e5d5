"""Score plugins in shares: scores from 0 to 1, higher is better."""

from collections import OrderedDict
from typing import Any, Final

import numpy as np
from pydantic import Field

from kvatlas_chassis import Settings
from kvatlas_frontend.fleet.labels import NONE
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.plugin import (
    Kind,
    Mask,
    NoParams,
    PluginSpec,
    Services,
    Unit,
    Values,
)
from kvatlas_frontend.routing.recollection import LastWorkers, RowTimes
from kvatlas_frontend.routing.slots import CHUNK_HASHES, MATCHES, REQUEST, SESSION


class CacheAffinityPlugin:
    """Share of the prompt's usable blocks that the worker holds; 0 for a prompt without one."""

    def __init__(self, _: Services, __: NoParams) -> None:
        pass

    def score(self, context: RoutingContext, candidates: Mask) -> Values:
        """See `Scorer`."""
        scores = np.zeros(len(candidates))
        blocks = len(context[CHUNK_HASHES])
        if blocks:
            # Rows added after the matches are not known to hold anything.
            depths = context[MATCHES].depths
            np.divide(depths, blocks, out=scores[: len(depths)])
        return scores


class LeastLoadPlugin:
    """1 for the candidate with the fewest prompt tokens in flight, 0 for the most, linear between."""

    def __init__(self, services: Services, _: NoParams) -> None:
        self._columns = services.fleet.columns

    def score(self, _: RoutingContext, candidates: Mask) -> Values:
        """See `Scorer`."""
        return _fewest_first(self._columns.active_tokens, candidates)


class RunningRequestsPlugin:
    """1 for the candidate with the fewest requests in flight, 0 for the most, linear between."""

    def __init__(self, services: Services, _: NoParams) -> None:
        self._columns = services.fleet.columns

    def score(self, _: RoutingContext, candidates: Mask) -> Values:
        """See `Scorer`."""
        columns = self._columns
        return _fewest_first(columns.requests + columns.requests_elsewhere, candidates)


class KvUsagePlugin:
    """Share of the engine's cache that is free, by its own report.

    Without a report it is estimated from the prompt tokens in flight and the size of the cache, and
    without that size the cache counts as free.
    """

    def __init__(self, services: Services, _: NoParams) -> None:
        self._columns = services.fleet.columns
        self._block_size = services.block_size

    def score(self, _: RoutingContext, candidates: Mask) -> Values:
        """See `Scorer`."""
        columns = self._columns
        used = columns.kv_usage
        unknown = candidates & np.isneginf(columns.load_told_s)
        if unknown.any():
            capacity = columns.capacity_blocks * self._block_size
            unknown &= capacity > 0
            used = used.copy()
            used[unknown] = np.minimum(1.0, columns.active_tokens[unknown] / capacity[unknown])
        return 1.0 - used


class LocalityParams(Settings):
    """`labels`: this frontend's own labels, as `{region: eu, zone: eu-1a}`."""

    labels: dict[str, str] = Field(min_length=1)


class LocalityPlugin:
    """Share of the labels that the worker has in common with this frontend."""

    def __init__(self, services: Services, params: LocalityParams) -> None:
        labels = services.fleet.columns.labels
        self._own = [
            (labels[name], labels[name].code(value) if value else NONE)
            for name, value in params.labels.items()
        ]

    def score(self, _: RoutingContext, candidates: Mask) -> Values:
        """See `Scorer`."""
        scores = np.zeros(len(candidates))
        for column, code in self._own:
            scores += column.codes == code
        return scores / len(self._own)


class SessionParams(Settings):
    """`ttl_s`: a session is forgotten so long after its last request. `sessions_max`: most of them."""

    ttl_s: float = Field(default=3600.0, gt=0)
    sessions_max: int = Field(default=100_000, gt=0)


class SessionPlugin:
    """1 for the worker that served the session's last request, 0 for the others."""

    def __init__(self, services: Services, params: SessionParams) -> None:
        self._fleet = services.fleet
        self._now_s = services.now_s
        self._workers = LastWorkers(keys_max=params.sessions_max, ttl_s=params.ttl_s)

    def score(self, context: RoutingContext, candidates: Mask) -> Values:
        """See `Scorer`."""
        scores = np.zeros(len(candidates))
        session = context[SESSION]
        worker = self._workers.get(session, self._now_s()) if session else None
        row = self._fleet.rows.get(worker) if worker is not None else None
        if row is not None:
            scores[row] = 1.0
        return scores

    def picked(self, context: RoutingContext, row: int) -> None:
        """See `Follower`."""
        session = context[SESSION]
        if session:
            self._workers.put(session, self._fleet.worker(row).key, self._now_s())


class LoraAffinityParams(Settings):
    """`ttl_s`: how long an engine is believed to keep an adapter that it used.

    `adapters_max`: most adapters that are followed; the one used longest ago is forgotten.
    """

    ttl_s: float = Field(default=300.0, gt=0)
    adapters_max: int = Field(default=1000, gt=0)


class LoraAffinityPlugin:
    """1 for workers to which a request for the same adapter went lately, so it is loaded there.

    Requests for the base model get 0 everywhere. The idea is the LoRA affinity scorer of the Gateway
    API Inference Extension, which reads the engines' lists of loaded adapters instead.
    """

    def __init__(self, services: Services, params: LoraAffinityParams) -> None:
        self._columns = services.fleet.columns
        self._now_s = services.now_s
        self._params = params
        self._used: OrderedDict[str, RowTimes] = OrderedDict()

    def score(self, context: RoutingContext, candidates: Mask) -> Values:
        """See `Scorer`."""
        adapter = context[REQUEST].model.lora_name
        used = self._used.get(adapter) if adapter else None
        if used is None:
            return np.zeros(len(candidates))
        return (used.times_s() > self._now_s() - self._params.ttl_s).astype(np.float64)

    def picked(self, context: RoutingContext, row: int) -> None:
        """See `Follower`."""
        adapter = context[REQUEST].model.lora_name
        if not adapter:
            return
        used = self._used.get(adapter)
        if used is None:
            used = self._used[adapter] = RowTimes(self._columns)
        self._used.move_to_end(adapter)
        used.put(row, self._now_s())
        if len(self._used) > self._params.adapters_max:
            self._used.popitem(last=False)


class NoHitLruPlugin:
    """Spreads prompts that no worker holds: 1 for the worker that got such a one longest ago.

    The candidates are ranked by their last prompt without a hit, and the most recent gets 0. Prompts
    that some worker holds get 0 everywhere. After the no-hit LRU scorer of llm-d
    (`llm-d-inference-scheduler`, `pkg/plugins/scorer/no_hit_lru.go`): new prefixes grow evenly in all
    caches.
    """

    def __init__(self, services: Services, _: NoParams) -> None:
        self._last = RowTimes(services.fleet.columns)
        self._turns = 0

    def score(self, context: RoutingContext, candidates: Mask) -> Values:
        """See `Scorer`."""
        scores = np.zeros(len(candidates))
        if context[MATCHES].depths.any():
            return scores
        rows = candidates.nonzero()[0]
        if len(rows) == 1:
            scores[rows] = 1.0
            return scores
        last = self._last.times_s()[rows]
        # Equal times get equal ranks: all that never had one are equally good.
        ranks = np.searchsorted(np.sort(last), last)
        scores[rows] = 1.0 - ranks / (len(rows) - 1)
        return scores

    def picked(self, context: RoutingContext, row: int) -> None:
        """See `Follower`."""
        if not context[MATCHES].depths.any():
            self._turns += 1
            self._last.put(row, self._turns)


def _fewest_first(counts: Values | Any, candidates: Mask) -> Values:  # noqa: ANN401 - int64[rows]
    known = counts[candidates]
    fewest, most = known.min(), known.max()
    if fewest == most:
        return np.ones(len(candidates))
    # Those that are no candidates may be outside of the range; nobody reads theirs.
    scores: Values = (most - counts) / (most - fewest)
    return scores


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec(
        "cache-affinity",
        Kind.SCORE,
        NoParams,
        CacheAffinityPlugin,
        (CHUNK_HASHES, MATCHES),
        unit=Unit.SHARE,
    ),
    PluginSpec("least-load", Kind.SCORE, NoParams, LeastLoadPlugin, unit=Unit.SHARE),
    PluginSpec("running-requests", Kind.SCORE, NoParams, RunningRequestsPlugin, unit=Unit.SHARE),
    PluginSpec("kv-usage", Kind.SCORE, NoParams, KvUsagePlugin, unit=Unit.SHARE),
    PluginSpec("locality", Kind.SCORE, LocalityParams, LocalityPlugin, unit=Unit.SHARE),
    PluginSpec("session", Kind.SCORE, SessionParams, SessionPlugin, (SESSION,), unit=Unit.SHARE),
    PluginSpec(
        "lora-affinity",
        Kind.SCORE,
        LoraAffinityParams,
        LoraAffinityPlugin,
        (REQUEST,),
        unit=Unit.SHARE,
    ),
    PluginSpec("no-hit-lru", Kind.SCORE, NoParams, NoHitLruPlugin, (MATCHES,), unit=Unit.SHARE),
)
