"""A trial of a policy without servers: told workers, matches, headers and time. For tests."""

import random
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvatlas_client import Load, Matches, WorkerKey, WorkerState
from kvatlas_frontend.api.body import OpaquePrompt, ParsedBody, Prompt, TokenPrompt
from kvatlas_frontend.fleet.models import ModelRoute
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord
from kvatlas_frontend.routing.check import check
from kvatlas_frontend.routing.context import RoutingContext
from kvatlas_frontend.routing.installed import all_plugins
from kvatlas_frontend.routing.interfaces import NoIndexerError
from kvatlas_frontend.routing.plugin import Services
from kvatlas_frontend.routing.preparation import Preparation
from kvatlas_frontend.routing.profile import Profile, load_profile
from kvatlas_frontend.routing.registry import Registry
from kvatlas_frontend.routing.selector import Explanation, Selector
from kvatlas_frontend.routing.slots import RoutingRequest
from kvatlas_frontend.routing.workflow import RoutingPlan, SingleDispatch
from kvatlas_frontend.tokens.prompt_tokenizer import PromptTokens, TokensUnavailableError


class Stopwatch:
    """Keeps the durations that are recorded."""

    def __init__(self) -> None:
        self.observed: list[float] = []

    def observe(self, amount: float) -> None:
        """Record one duration."""
        self.observed.append(amount)


class Trial:
    """Routes requests by a profile.

    Attributes:
        depths: blocks that each worker holds of any prompt, by worker id; the indexers' answer.
        is_indexer_down: no indexer answers.
        now_s: the time.
        plan: the plan of the last request.
        context: the context of the last request.
    """

    def __init__(
        self,
        policy: str | Mapping[str, Any],
        workers: int | Iterable[WorkerRecord],
        *,
        registry: Registry | None = None,
        block_size: int = 16,
        seed: int = 0,
    ) -> None:
        """Check the profile and build its plugins.

        Args:
            policy: a shipped policy's name, a file, or a profile's document.
            workers: records, or the number of idle workers, with ids from 0.
            registry: the plugins that there are; None: all that are installed.
            block_size: tokens per block.
            seed: of the plugins' random choices.

        Raises:
            ProfileError: the profile cannot run.
        """
        self.depths: dict[int, int] = {}
        self.is_indexer_down = False
        self.now_s = 0.0
        self.plan: RoutingPlan | None = None
        self.context = RoutingContext()
        self.stages = {name: Stopwatch() for name in ("tokenize", "hash", "find", "choose")}
        self.plugins: dict[tuple[str, str], Stopwatch] = {}
        self.fleet = Fleet()
        records = map(worker, range(workers)) if isinstance(workers, int) else workers
        self.tell(*records)
        services = Services(
            fleet=self.fleet,
            tokens=self,
            matches=self,
            block_size=block_size,
            deadline_ms=100.0,
            now_s=self._now,
            rng=random.Random(seed),
        )
        document = (
            load_profile(policy) if isinstance(policy, str) else Profile.model_validate(policy)
        )
        profile = check(document, registry or all_plugins())
        self.preparation = Preparation(
            [profile],
            services,
            timers=self.stages,
            plugin_timers=self._plugin_timer,
            now_s=self._now,
        )
        selector = Selector(
            profile,
            services,
            timers=self.stages,
            plugin_timers=self._plugin_timer,
            now_s=self._now,
        )
        self.workflow = SingleDispatch(
            self.preparation, selector, self.fleet, block_size=block_size
        )

    def tell(self, *records: WorkerRecord, full: bool = True) -> None:
        """Tell of workers; with `full`, others are gone."""
        self.fleet.apply(FleetChange(full, records, ()))

    def row(self, worker_id: int) -> int:
        """The row of a worker of rank 0."""
        return self.fleet.rows[WorkerKey(worker_id, 0)]

    def begin(self, worker_id: int, tokens: int = 0) -> None:
        """Put a request of so many tokens on a worker; it stays there."""
        self.fleet.tracker.begin(self.row(worker_id), prompt_tokens=tokens, cached_tokens=0)

    async def route(
        self,
        prompt: Prompt | int = 0,
        *,
        headers: Mapping[str, str] | None = None,
        user: str = "",
        lora: str | None = None,
        keep: bool = False,
    ) -> int | None:
        """Route a request and end it; return the worker's id, None if there is none.

        Args:
            prompt: the prompt, or its number of tokens; 0: it cannot be tokenized.
            headers: the request's headers, names in lower case.
            user: `user` of the request's body.
            lora: the adapter that is asked for.
            keep: leave the request on its worker instead of ending it.
        """
        if isinstance(prompt, int):
            ids = np.arange(prompt, dtype=np.uint32)
            prompt = TokenPrompt(ids, None) if prompt else OpaquePrompt()
        body = ParsedBody(None, stream=True, cache_salt=None, prompt=prompt, batch=False, user=user)
        told = headers or {}
        header: Callable[[str], str | None] = told.get
        model = ModelRoute(lora or "base", lora, None)
        self.context, self.plan = await self.workflow.route(
            RoutingRequest(body, model, header=header)
        )
        return self._taken(keep=keep)

    def retry(self, tried: AbstractSet[int], *, keep: bool = False) -> int | None:
        """Route the last request again, not to the workers that were tried."""
        urls = {self.fleet.worker(self.row(number)).record.engine_url for number in tried}
        self.plan = self.workflow.plan(self.context, urls)
        return self._taken(keep=keep)

    def explain(self) -> Explanation:
        """How the choice for the last request would come about now."""
        return self.workflow.explain(self.context)

    async def tokens(self, prompt: Prompt, model: str) -> PromptTokens:
        """See `TokenSource`."""
        del model
        if isinstance(prompt, TokenPrompt):
            return PromptTokens(prompt.tokens, whole=True)
        raise TokensUnavailableError

    async def find(
        self, chunk_hashes: NDArray[np.uint64], *, limit: int, deadline_ms: float
    ) -> Matches:
        """See `MatchFinder`."""
        del limit, deadline_ms
        if self.is_indexer_down:
            raise NoIndexerError
        depths = np.minimum(
            np.array(list(self.depths.values()), dtype=np.uint32), len(chunk_hashes)
        )
        return Matches(
            np.array(list(self.depths), dtype=np.uint64),
            np.zeros(len(self.depths), dtype=np.uint32),
            depths.astype(np.uint32),
            "replica:1",
        )

    def _taken(self, *, keep: bool) -> int | None:
        if self.plan is None:
            return None
        if not keep:
            self.fleet.release(self.plan.ticket)
        return self.plan.worker.key.worker_id

    def _now(self) -> float:
        return self.now_s

    def _plugin_timer(self, kind: str, plugin: str) -> Stopwatch:
        return self.plugins.setdefault((kind, plugin), Stopwatch())


def worker(
    worker_id: int,
    *,
    load: Load | None = None,
    load_told_s: float = 0.0,
    role: str = "",
    labels: Mapping[str, str] | None = None,
    capacity_blocks: int = 0,
) -> WorkerRecord:
    """A live worker of rank 0 with an engine of its own."""
    return WorkerRecord(
        WorkerKey(worker_id, 0),
        WorkerState.LIVE,
        1,
        f"http://engine{worker_id}:1",
        load=load,
        load_told_s=load_told_s,
        role=role,
        labels=labels or {},
        capacity_blocks=capacity_blocks,
    )
